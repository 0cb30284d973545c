"""Reaching MLflow: quickly or not at all, without a word of its own on the terminal."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from harness.core.errors import BadInput, HarnessError, one_line
from harness.records.environment import CREDENTIALS_IN_URL

if TYPE_CHECKING:
    from mlflow import MlflowClient

SERVERS = ("http", "https", "databricks")
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
FIRST_ANSWER = 2  # seconds that a server has for it, and the same again for a second try
ANSWER = 15  # seconds that it has for any later one
SETTINGS = {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


class TrackerDown(HarnessError):
    """MLflow could not be reached or would not take what it was given; the records are safe."""


def check_uri(uri: str) -> None:
    """Raises BadInput for what can't be a tracking URI; connects to nothing."""
    scheme = uri if uri == "databricks" else urlsplit(uri).scheme.partition("+")[0]
    plugins = {entry.name for entry in metadata.entry_points(group="mlflow.tracking_store")}
    if scheme not in {*SERVERS, *DATABASES, *plugins}:
        allowed = ", ".join(f"{name}://" for name in (*SERVERS[:2], *DATABASES))
        raise BadInput(f"tracking URI: found {shown(uri)!r}; allowed: {allowed}, databricks")
    if scheme in SERVERS[:2] and not urlsplit(uri).hostname:
        raise BadInput(f"tracking URI: found {shown(uri)!r}; it names no host")


def is_server(uri: str) -> bool:
    """Whether MLflow's own server answers there, rather than a database that this process opens."""
    return uri.partition(":")[0] in SERVERS


def shown(uri: str) -> str:
    """A URI for people: without credentials."""
    return CREDENTIALS_IN_URL.sub("", uri)


@contextmanager
def quiet(*, answer: int = ANSWER) -> Iterator[None]:
    """MLflow neither prints, warns, reports home nor waits for minutes; what the user has set for it stays."""
    settings = SETTINGS | {"MLFLOW_HTTP_REQUEST_TIMEOUT": str(answer)}
    changed = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(changed)
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic", "urllib3")]
    levels = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import mlflow  # noqa: F401 - configures its loggers when first imported

            levels = [logger.level for logger in loggers]
            for logger in loggers:
                logger.setLevel(logging.CRITICAL + 1)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=False):
            logger.setLevel(level)
        for name in changed:
            os.environ.pop(name, None)


@contextmanager
def in_one_line(uri: str, trouble: str, kind: type[HarnessError] = TrackerDown) -> Iterator[None]:
    """Whatever MLflow raises becomes an error of this kind, which begins with what the trouble is. Only within
    `quiet`."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        root: BaseException = error
        while root.__context__ is not None:
            root = root.__context__
        reason = one_line(
            CREDENTIALS_IN_URL.sub("", str(root if isinstance(root, OSError) else error)), 160
        )
        raise kind(f"MLflow at {shown(uri)} {trouble}: {reason}") from error


def check_exists(uri: str) -> None:
    """Raises BadInput for a SQLite database that isn't there: MLflow would make it."""
    file = uri.partition("sqlite:///")[2]
    if file and not Path(file).exists():
        raise BadInput(
            f"{file}: no such database; allowed: one that holds runs, or a server by --tracking-uri"
        )


def connect(uri: str) -> MlflowClient:
    """A client whose store exists; raises within seconds if it can't."""
    from mlflow import MlflowClient

    if not is_server(uri) and uri.partition(":")[0].partition("+")[0] in DATABASES:
        _probe(uri)
    return MlflowClient(tracking_uri=uri)


def _probe(database: str) -> None:
    """MLflow would try for 100 s before it says why it can't open a database."""
    import sqlalchemy

    found = sqlalchemy.make_url(database)
    if found.host and found.port:
        socket.create_connection((found.host, found.port), FIRST_ANSWER).close()
    engine = sqlalchemy.create_engine(found)
    try:
        sqlalchemy.inspect(engine).get_table_names()
    finally:
        engine.dispose()
