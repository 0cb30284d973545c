"""New databases are copies of one that MLflow made, and MLflow's own where none can be made."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import alembic.command
import pytest

from harness.core.paths import Results, cache_folder
from harness.tracking import Tracker, database
from harness.tracking.connect import quiet


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the database in a cache of the test's own, a copy of the one that all tests share."""
    with quiet():
        shared = database._cached_database()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        path = cache_folder() / "mlflow" / shared.name
        path.parent.mkdir(parents=True)
        shutil.copyfile(shared, path)
        assert database._cached_database() == path
    return path


def test_mlflow_takes_the_copy_as_it_is(
    results: Results, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(alembic.command, "upgrade")
    before = cached.read_bytes()
    Tracker(results).prepare()
    with closing(sqlite3.connect(results.database)) as made:
        assert made.execute("SELECT name FROM experiments").fetchall() == [("Default",)]
    assert cached.read_bytes() == before
    assert not list(results.path.glob(".mlflow.db*"))


@pytest.mark.parametrize(
    "damage",
    [b"", b"no database" * 1000, b"half", "UPDATE alembic_version SET version_num = 'older'"],
    ids=["empty", "foreign", "cut", "older"],
)
def test_a_cached_database_that_is_not_usable_is_made_anew(
    results: Results, cached: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | str
) -> None:
    whole = cached.read_bytes()
    if isinstance(damage, str):
        with closing(sqlite3.connect(cached)) as changed, changed:
            changed.execute(damage)
    else:
        cached.write_bytes(whole[: len(whole) // 2] if damage == b"half" else damage)
    # Migrations take seconds, so here MLflow's result is there already.
    monkeypatch.setattr(database, "_make", lambda path: path.write_bytes(whole))
    with quiet():
        database.create_database(f"sqlite:///{results.database}")
    assert cached.read_bytes() == results.database.read_bytes() == whole


def test_nothing_is_made_where_there_is_no_cache_or_something_else_is_meant(
    tmp_path: Path, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, existing = tmp_path / "new.db", tmp_path / "existing.db"
    existing.write_bytes(b"mine")
    with quiet():
        for uri in (
            f"sqlite:///{existing}",
            f"sqlite:///{new}?mode=ro",
            "sqlite://",
            "sqlite:///:memory:",
        ):
            database.create_database(uri)
        monkeypatch.setenv("XDG_CACHE_HOME", str(existing))
        database.create_database(f"sqlite:///{new}")
    assert existing.read_bytes() == b"mine"
    assert not new.exists()


def test_a_database_that_another_process_has_made_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    path.write_bytes(b"theirs")
    with pytest.raises(FileExistsError):
        database._write_new(path, b"ours")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [
        ("mlflow.db", b"theirs")
    ]
