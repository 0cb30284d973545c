"""Connects to MLflow: quickly or not at all, and without MLflow's own output on the terminal.

MLflow is imported inside functions only, because that takes longer than most commands.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from harness.core.errors import BadInput, HarnessError, StorageError, one_line
from harness.core.storage import free_space, storage_error

if TYPE_CHECKING:
    from mlflow import MlflowClient

# The schemes of a tracking URI, by what answers it.
WEB_SCHEMES = ("http", "https")
SERVERS = (*WEB_SCHEMES, "databricks")
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
HOST_AND_PORT = re.compile(r"[\w.-]+:[0-9]+/?")
# A user and a password in a URL, up to the last @ of what may be its host.
CREDENTIALS = re.compile(r"(?<=://)[^\s\"']*@")
SQLITE_PREFIX = "sqlite:///"
SQLITE_DISK_ERROR = re.compile(r"database or disk is full|disk I/O error")
SQLITE_LOCK = re.compile(r"database (table )?is locked")
SQLITE_DAMAGE = re.compile("database disk image is malformed|file is not a database")
CONNECT_TIMEOUT = 2  # seconds for the first answer, and the same again for MLflow's one retry
REQUEST_TIMEOUT = 15  # seconds for every later answer
CALL_TIMEOUT = 120.0  # seconds for a whole answer, however slowly its bytes arrive
UPLOAD_TIMEOUT = 1800.0  # seconds for files
REASON_LENGTH = 160  # characters of MLflow's own message that an error repeats
SETTINGS = {  # environment variables that keep MLflow quiet, local and quick to give up
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


class TrackerDown(HarnessError):
    """MLflow could not be reached or refused the delivery; the records on disk are safe."""


class StoreLocked(TrackerDown):
    """Another program holds the lock on a local database; it may release it any moment."""


def local_uri(database: Path) -> str:
    """Return the URI of the SQLite database of a results folder; raises BadInput for one that has none.

    SQLAlchemy takes what follows a question mark for options, and decodes what follows a percent sign.
    """
    path = str(database.absolute())
    unusual = sorted(set("?%#") & set(path))
    if unusual:
        raise BadInput(
            f"{path}: found {' '.join(unusual)} in the path of MLflow's database; allowed: results in a"
            " folder without ? % and #, or a server (--tracking-uri)"
        )
    return f"{SQLITE_PREFIX}{path}"


def check_uri(uri: str) -> None:
    """Raise BadInput for a tracking URI that no store can have. Connects to nothing.

    A store is a web server, Databricks, a database that MLflow supports, or one of the schemes that
    an installed plugin has registered. A folder of files (`file://`) is refused, because MLflow has
    deprecated it.
    """
    scheme = urlsplit(uri).scheme.partition("+")[0]  # `postgresql` of `postgresql+psycopg2://…`
    if uri == "databricks":  # the one URI that is a bare word
        scheme = uri
    plugins = metadata.entry_points(group="mlflow.tracking_store").names
    if scheme not in {*SERVERS, *DATABASES, *plugins}:
        allowed = ", ".join(f"{name}://" for name in (*WEB_SCHEMES, *DATABASES))
        hint = f"did you mean 'http://{uri}'? " if HOST_AND_PORT.fullmatch(uri) else ""
        raise BadInput(
            f"tracking URI: found {shown_uri(uri)!r}; {hint}allowed: {allowed}, databricks"
        )
    if scheme in WEB_SCHEMES and not urlsplit(uri).hostname:
        raise BadInput(
            f"tracking URI: found {shown_uri(uri)!r}, which names no host;"
            f" allowed: {scheme}://HOST[:PORT]"
        )


def is_server(uri: str) -> bool:
    """Return whether the URI names an MLflow server, not a database that this process opens.

    A server decides itself where artifacts are stored, and serves its own pages.
    """
    return uri.partition(":")[0].lower() in SERVERS


def shown_uri(uri: str) -> str:
    """Return the URI as it may be shown: where the store is, without user, password or query.

    `https://me:secret@host/x?token=y` becomes `https://host/x`. Of what can't be parsed, only the
    scheme is left.
    """
    scheme, separator, _ = uri.partition("://")
    if scheme.partition("+")[0] in DATABASES and separator:
        return _shown_database(uri, scheme)
    return re.split(r"[?#]", CREDENTIALS.sub("", uri), maxsplit=1)[0]


def _shown_database(uri: str, scheme: str) -> str:
    """Return the URI of a database as it may be shown."""
    from sqlalchemy import URL, make_url
    from sqlalchemy.exc import ArgumentError

    unparsed = f"{scheme}://…"
    try:
        url = make_url(uri)
    except (ArgumentError, ValueError):  # ValueError: a port that is no number
        return unparsed
    host = (url.host or "").rpartition("@")[2]  # what an unquoted @ in the password has left there
    if host and "@" in (url.database or ""):  # and what an unquoted / in the user's name has
        return unparsed
    where = URL.create(url.drivername, host=host or None, port=url.port, database=url.database)
    shown: str = where.render_as_string(hide_password=True)
    return shown


@contextmanager
def quiet(*, timeout: int = REQUEST_TIMEOUT) -> Iterator[None]:
    """Keep MLflow from printing, warning, reporting home and waiting for minutes.

    `timeout` is in seconds, for each request to a server. Environment variables that the user has
    set stay as they are, and all are as before when the block ends.

    MLflow reads its settings from the environment at each request, not once, which is why they are
    set here and not passed on. Its loggers would print a traceback for each retry.
    """
    added = []
    for name, value in (SETTINGS | {"MLFLOW_HTTP_REQUEST_TIMEOUT": str(timeout)}).items():
        if name not in os.environ:
            os.environ[name] = value
            added.append(name)
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic", "urllib3")]
    levels: list[int] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # MLflow sets the levels of its loggers on first import, so they are read after it.
            import mlflow  # noqa: F401

            levels = [logger.level for logger in loggers]
            for logger in loggers:
                logger.setLevel(logging.CRITICAL + 1)
            yield
    finally:
        # There are no levels to restore if the import itself failed.
        for logger, level in zip(loggers, levels, strict=False):
            logger.setLevel(level)
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def errors_in_one_line(
    uri: str, trouble: str, error_type: type[HarnessError] = TrackerDown
) -> Iterator[None]:
    """Turn whatever MLflow raises into one `error_type`: `MLflow at URI TROUBLE: reason`.

    MLflow raises its own exceptions, SQLAlchemy's for a database, and the operating system's for a
    connection. All other exceptions are programming errors and keep their traceback. Credentials
    in the URI are removed, wherever MLflow repeats them too. An error of the disk that a local
    database is on is a StorageError instead.

    Use it inside `quiet` only, because it imports MLflow.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        causes = list(_causes(error))
        # MLflow wraps a refused connection in several exceptions that speak of retries. The error of
        # the system or of urllib3 at the bottom of the chain is the reason.
        reason = str(causes[-1] if isinstance(causes[-1], (OSError, HTTPError)) else error)
        reason = one_line(CREDENTIALS.sub("", reason), REASON_LENGTH)
        message = f"MLflow at {shown_uri(uri)} {trouble}: {reason}"
        if not uri.startswith(SQLITE_PREFIX):
            raise error_type(message) from error
        database = Path(uri.removeprefix(SQLITE_PREFIX).partition("?")[0])
        texts = "\n".join(str(cause) for cause in causes)
        is_of_disk = any(storage_error(cause, database) for cause in causes)
        if is_of_disk or SQLITE_DISK_ERROR.search(texts):
            raise StorageError(f"{message}; {free_space(database)}") from error
        if SQLITE_DAMAGE.search(texts):
            message += "; the file is damaged: move it away, and harness collect fills a new one"
        if SQLITE_LOCK.search(texts):  # another program has held it for too long
            raise StoreLocked(message) from error
        raise error_type(message) from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, the one that it was raised from or in the handling of, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def check_exists(uri: str) -> None:
    """Raise BadInput for a SQLite database that does not exist.

    MLflow would create it, so that a mistyped path would look like a store without runs.
    """
    file = uri.partition(SQLITE_PREFIX)[2].partition("?")[0]
    if file and not Path(file).exists():
        raise BadInput(
            f"{file}: no such database; allowed: a database that holds runs, or a server"
            " (--tracking-uri)"
        )


def connect(uri: str) -> MlflowClient:
    """Return a client of a store that answers; raise within seconds if it does not.

    What is raised is MLflow's, SQLAlchemy's or the operating system's error: use it inside
    `errors_in_one_line`.
    """
    from mlflow import MlflowClient

    scheme = uri.partition(":")[0].partition("+")[0]
    if scheme in DATABASES:
        _create_database(uri)
        _check_database_answers(uri)
    return cast("MlflowClient", BoundedClient(MlflowClient(tracking_uri=uri)))


class BoundedClient:
    """A client of MLflow each of whose calls has a deadline, and fails in one way.

    MLflow's own timeout is for each piece of an answer: a server that drips would be waited for
    for ever. And an answer of another shape than MLflow's ends in whatever its parsers raise.
    """

    def __init__(self, client: MlflowClient) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the client; a method of it raises TrackerDown where it is in trouble."""
        method = getattr(self.client, name)
        if not callable(method):
            return method
        seconds = UPLOAD_TIMEOUT if "artifact" in name else CALL_TIMEOUT

        def call(*arguments: Any, **keywords: Any) -> Any:
            from mlflow.exceptions import MlflowException
            from sqlalchemy.exc import SQLAlchemyError

            try:
                with deadline(seconds):
                    return method(*arguments, **keywords)
            except (MlflowException, SQLAlchemyError, OSError):
                raise
            except Exception as error:
                kind = type(error).__name__
                raise MlflowException(
                    f"no answer of MLflow's ({kind}: {one_line(error)})"
                ) from error

        return call


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block after so many seconds, if this is the main thread.

    Python delivers signals to no other. The block may wait in a system call, which the alarm ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError(f"no complete answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _create_database(uri: str) -> None:
    """Have MLflow create a local SQLite database that does not exist.

    MLflow takes seconds for its migrations. Other processes that open the file during that time, or
    after the process was killed, would fail. So the file gets its name once it is complete.
    """
    from mlflow import MlflowClient

    path = Path(uri.removeprefix(SQLITE_PREFIX))
    if not uri.startswith(SQLITE_PREFIX) or "?" in uri or path.exists():
        return
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        MlflowClient(tracking_uri=f"{SQLITE_PREFIX}{aside}").search_experiments(max_results=1)
        if not path.exists():
            aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)


def _check_database_answers(uri: str) -> None:
    """Open the database once, and list its tables, which fails for a file that is no database.

    MLflow itself would retry for 100 s before it reports an error. A database server is connected
    to by hand before that, because its driver may have no timeout.
    """
    import sqlalchemy

    url = sqlalchemy.make_url(uri)
    if url.host and url.port:
        socket.create_connection((url.host, url.port), CONNECT_TIMEOUT).close()
    engine = sqlalchemy.create_engine(url)
    try:
        sqlalchemy.inspect(engine).get_table_names()
    finally:
        engine.dispose()
