"""Connects to MLflow: quickly or not at all, without its own output, and with a deadline for each call.

MLflow is imported inside functions only, because that takes longer than most commands.
"""

from __future__ import annotations

import logging
import os
import re
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

from harness.core.errors import BadInput, HarnessError, one_line

if TYPE_CHECKING:
    from mlflow import MlflowClient

# The schemes of a tracking URI, by what answers it.
WEB_SCHEMES = ("http", "https")
SERVERS = (*WEB_SCHEMES, "databricks")
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
# A user and a password in a URL, up to the last @ of what may be its host.
CREDENTIALS = re.compile(r"(?<=://)[^\s\"']*@")
SQLITE_PREFIX = "sqlite:///"
SQLITE_DAMAGE = re.compile("database disk image is malformed|file is not a database")
CONNECT_TIMEOUT = 2  # seconds for the first answer, and the same again for MLflow's one retry
REQUEST_TIMEOUT = 15  # seconds for every later answer
CALL_TIMEOUT = 120.0  # seconds for a whole answer, however slowly its bytes arrive
UPLOAD_TIMEOUT = 1800.0  # seconds for a file
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


def local_uri(database: Path) -> str:
    """Return the URI of the SQLite database of a results folder; raises BadInput for one that has none.

    SQLAlchemy takes what follows a question mark for options, and decodes what follows a percent sign.
    """
    path = str(database.absolute())
    if set("?%#") & set(path):
        raise BadInput(
            f"{path}: found ?, % or # in the path of MLflow's database; allowed: results in another"
            " folder, or a server (--tracking-uri)"
        )
    return f"{SQLITE_PREFIX}{path}"


def check_uri(uri: str) -> None:
    """Raise BadInput for a tracking URI that no store can have. Connects to nothing.

    A store is a web server, Databricks, a database that MLflow supports, or one of the schemes that
    an installed plugin has registered. A folder of files (`file://`) is refused, because MLflow has
    deprecated it.
    """
    try:
        parts = urlsplit(uri)
    except ValueError:  # for brackets without an address in them
        parts = urlsplit("")
    scheme = parts.scheme.partition("+")[0]  # `postgresql` of `postgresql+psycopg2://…`
    plugins = metadata.entry_points(group="mlflow.tracking_store").names
    is_known = uri == "databricks" or scheme in {*SERVERS, *DATABASES, *plugins}
    lacks_host = scheme in WEB_SCHEMES and not parts.hostname
    if not is_known or lacks_host:
        allowed = ", ".join(f"{name}://…" for name in (*WEB_SCHEMES, *DATABASES))
        raise BadInput(f"tracking URI: found {shown_uri(uri)!r}; allowed: {allowed}, databricks")


def is_server(uri: str) -> bool:
    """Return whether the URI names an MLflow server, not a database that this process opens.

    A server decides itself where artifacts are stored, and serves its own pages.
    """
    return uri.partition(":")[0].lower() in SERVERS


def shown_uri(uri: str) -> str:
    """Return the URI as it may be shown: where the store is, without user, password or query.

    An unquoted @ after a question mark may be of a password or of a query: then only the scheme is left.
    """
    scheme, separator, rest = uri.partition("://")
    where = re.split(r"[?#]", rest, maxsplit=1)[0]
    if "@" in rest[len(where) :]:
        return f"{scheme}://…"
    return scheme + separator + where.rpartition("@")[2]


@contextmanager
def quiet(timeout: int = REQUEST_TIMEOUT) -> Iterator[None]:
    """Keep MLflow from printing, warning, reporting home and waiting for minutes.

    `timeout` is in seconds, for each piece of an answer of a server. MLflow reads its settings from the
    environment at each request; variables that the user has set stay as they are.
    """
    settings = SETTINGS | {"MLFLOW_HTTP_REQUEST_TIMEOUT": str(timeout)}
    added = settings.keys() - os.environ.keys()
    for name in added:
        os.environ[name] = settings[name]
    logging.disable(logging.CRITICAL)  # MLflow's loggers print a traceback for each retry
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        for name in added:
            os.environ.pop(name, None)


def connect(uri: str) -> MlflowClient:
    """Return a client of a store that answers; raises TrackerDown within seconds if it does not."""
    return cast("MlflowClient", BoundedClient(uri))


class BoundedClient:
    """A client of MLflow each of whose calls is quiet, has a deadline, and fails as TrackerDown.

    MLflow's own timeout is for each piece of an answer: a server that drips would be waited for
    for ever.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.timeout = CONNECT_TIMEOUT
        with self._bounded(CALL_TIMEOUT):
            from mlflow import MlflowClient

            scheme = uri.partition(":")[0]
            if scheme.partition("+")[0] in DATABASES:
                _create_database(uri)
                _check_database_answers(uri)
            self.client = MlflowClient(tracking_uri=uri)

    def __getattr__(self, name: str) -> Any:
        """Return a method of the client."""
        method = getattr(self.client, name)
        seconds = UPLOAD_TIMEOUT if "artifact" in name else CALL_TIMEOUT

        def call(*arguments: Any, **keywords: Any) -> Any:
            with self._bounded(seconds):
                answer = method(*arguments, **keywords)
            self.timeout = REQUEST_TIMEOUT
            return answer

        return call

    @contextmanager
    def _bounded(self, seconds: float) -> Iterator[None]:
        """Turn whatever MLflow raises in the block, its parsers' errors too, into one line."""
        try:
            with quiet(self.timeout), deadline(seconds):
                yield
        except Exception as error:
            raise TrackerDown(describe_trouble(self.uri, error)) from error


def describe_trouble(uri: str, error: BaseException) -> str:
    """Return an error of MLflow's in one line, without credentials.

    MLflow wraps a refused connection in several exceptions that speak of retries. The error of the
    system or of urllib3 at the bottom of the chain is the reason.
    """
    from mlflow.exceptions import MlflowException
    from urllib3.exceptions import HTTPError

    bottom = error
    while cause := bottom.__cause__ or bottom.__context__:
        bottom = cause
    reason = f"{type(error).__name__}: {error}"
    if isinstance(bottom, (OSError, HTTPError)):
        reason = str(bottom)
    elif isinstance(error, MlflowException):
        reason = str(error)
    hint = ""
    if uri.startswith(SQLITE_PREFIX) and SQLITE_DAMAGE.search(f"{error} {bottom}"):
        hint = "; the file is damaged: move it away, and harness collect fills a new one"
    reason = one_line(CREDENTIALS.sub("", reason), REASON_LENGTH)
    return f"MLflow at {shown_uri(uri)}: {reason}{hint}"


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
    is_file = uri.startswith(SQLITE_PREFIX) and "?" not in uri
    if not is_file or path.exists():
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        client = MlflowClient(tracking_uri=f"{SQLITE_PREFIX}{aside}")
        client.search_experiments(max_results=1)
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
