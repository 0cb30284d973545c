"""Makes a new local database for MLflow by copying an empty one that MLflow has made before.

MLflow makes a SQLite database by all migrations of its history, one after the other. That takes
2 s of CPU time in every new results folder, and the database is the same each time. So an empty
one is kept in the user's cache for each version of MLflow. Nothing here writes to a table.

Where a copy can't be made, MLflow makes the database itself, and says what is wrong.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from harness.core.locks import lock_file
from harness.core.paths import cache_folder

LOCK_TIMEOUT = 60.0  # seconds that another process may take to make the database in the cache


def create_database(uri: str) -> None:
    """Make the SQLite database of a tracking URI, unless it exists or is not a plain local file.

    Two processes may do so at once: the first one's database stays. Use it inside `quiet` only,
    because it imports MLflow.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    path = local_database(uri)
    if path is None or path.exists():
        return
    try:
        with _cached_database().open("rb") as cached:
            _write_new(path, cached.read())
    except (OSError, RuntimeError, sqlite3.Error, SQLAlchemyError, MlflowException):
        return  # MLflow makes it; RuntimeError: a user without a home has no cache


def local_database(uri: str) -> Path | None:
    """Return the file of a SQLite database, None for other stores and for URIs with options."""
    from sqlalchemy import make_url

    url = make_url(uri)
    if url.get_backend_name() != "sqlite" or url.query or not url.database:
        return None
    if url.database.startswith(":"):  # :memory:
        return None
    return Path(url.database)


def _cached_database() -> Path:
    """Return an empty database of the installed MLflow in the cache, made if it is not there."""
    import mlflow

    revision = _schema_revision()
    path = cache_folder() / "mlflow" / f"{mlflow.__version__}-{revision}.db"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("ab") as lock:
        lock_file(lock, LOCK_TIMEOUT)  # without it, two processes do the same work
        if not _is_intact(path, revision):
            _make(path)
    return path


@cache
def _schema_revision() -> str | None:
    """Return the last of the installed MLflow's migrations, whose id a database of its schema has.

    Alembic imports all of them for it.
    """
    import mlflow
    from alembic.script import ScriptDirectory

    scripts = Path(mlflow.__file__).parent / "store" / "db_migrations"
    return ScriptDirectory(str(scripts)).get_current_head()


def _is_intact(path: Path, revision: str | None) -> bool:
    """Return whether a database is whole, and has the schema of a migration."""
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(path)) as database:
            (check,) = database.execute("PRAGMA quick_check").fetchone()
            revisions = database.execute("SELECT version_num FROM alembic_version").fetchall()
    except sqlite3.DatabaseError:
        return False
    return bool(check == "ok" and revisions == [(revision,)])


def _make(path: Path) -> None:
    """Have MLflow make an empty database, as `mlflow db upgrade` does, and give it its name."""
    from mlflow.db import commands

    aside = _aside(path)
    try:
        commands.main(["upgrade", f"sqlite:///{aside}"], standalone_mode=False)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _write_new(path: Path, content: bytes) -> None:
    """Write a file that appears whole under its name, or not at all if the name is taken.

    Raises OSError, also where the file system has no links.
    """
    aside = _aside(path)
    try:
        with aside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(aside, path)  # a rename would replace what another process has written meanwhile
    finally:
        aside.unlink(missing_ok=True)


def _aside(path: Path) -> Path:
    """Return a new hidden name beside a file, such as that of `write_atomically`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")
