"""What a tracking URI looks like where it is shown."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import OperationalError
from urllib3 import HTTPConnectionPool
from urllib3.exceptions import MaxRetryError, ResponseError

from harness.core.errors import BadInput, StorageError
from harness.core.paths import Results
from harness.tracking import Tracker
from harness.tracking import connect as connect_module
from harness.tracking.connect import (
    StoreLocked,
    TrackerDown,
    check_exists,
    check_uri,
    connect,
    errors_in_one_line,
    is_server,
    quiet,
    shown_uri,
)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("https://host:5000/x", "https://host:5000/x"),
        ("https://me:hunter2@host/x?token=hunter2#hunter2", "https://host/x"),
        ("https://hunter2@host/x", "https://host/x"),
        ("https://u:hun/ter2@host/x", "https://host/x"),
        ("https://u:hun?ter2@host/x", "https://host/x"),
        ("postgresql://u:hunter2@host:5432/db", "postgresql://host:5432/db"),
        ("postgresql+psycopg2://u:hun/ter2@host/db", "postgresql+psycopg2://host/db"),
        ("postgresql://u:hunt@er2@host/db", "postgresql://host/db"),
        ("postgresql://u/v:hunter2@host/db", "postgresql://…"),
        ("postgresql://u:12345/hunter2@host/db", "postgresql://host/db"),
        ("postgresql://host/db?user=u&password=hunter2", "postgresql://host/db"),
        ("postgresql://u:hunter2@host:port/db", "postgresql://…"),
        ("mssql+pyodbc:///?odbc_connect=PWD%3Dhunter2", "mssql+pyodbc:///"),
        ("mysql://u:hunter2@[::1]:3306/db", "mysql://[::1]:3306/db"),
        ("sqlite:////home/me/mlflow.db?mode=ro", "sqlite:////home/me/mlflow.db"),
        ("databricks", "databricks"),
        ("ftp://u:hunter2@host", "ftp://host"),
    ],
)
def test_uri_is_shown_without_credentials_and_query(uri: str, expected: str) -> None:
    assert shown_uri(uri) == expected


def test_a_query_is_no_part_of_a_database_s_path(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with pytest.raises(BadInput, match=rf"^{path}: no such database; allowed: "):
        check_exists(f"sqlite:///{path}?timeout=60")
    path.touch()
    check_exists(f"sqlite:///{path}?timeout=60")


def test_refused_uri_is_named_without_its_password() -> None:
    with pytest.raises(BadInput, match="'ftp://host'") as refusal:
        check_uri("ftp://u:hun/ter2@host")
    assert "ter2" not in str(refusal.value)


def test_message_of_a_store_that_fails_repeats_no_password() -> None:
    uri = "postgresql://u:hun%2Fter2@host/db"
    with (
        pytest.raises(TrackerDown, match="MLflow at postgresql://host/db") as trouble,
        quiet(),
        errors_in_one_line(uri, "is down"),
    ):
        raise OSError(f"can't connect to {uri}")
    assert "ter2" not in str(trouble.value)


def test_a_locked_database_is_told_from_a_tracker_that_is_down(tmp_path: Path) -> None:
    """By the words of SQLite, in whatever MLflow has wrapped them."""
    error = OSError("a long message of MLflow's")
    error.__context__ = sqlite3.OperationalError("database is locked")
    with (
        pytest.raises(StoreLocked, match=r"mlflow.db did not take the results: "),
        quiet(),
        errors_in_one_line(f"sqlite:///{tmp_path / 'mlflow.db'}", "did not take the results"),
    ):
        raise error


def test_a_full_disk_below_the_local_database_is_told_from_a_tracker_that_is_down(
    tmp_path: Path,
) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("pragma max_page_count = 1")
        with pytest.raises(sqlite3.OperationalError) as full:
            database.execute("create table t (x)")
    database.close()
    error = OperationalError("create", None, full.value)
    with (
        pytest.raises(StorageError, match=rf"^MLflow at {uri} .*disk is full.*; free: .* MiB$"),
        quiet(),
        errors_in_one_line(uri, "did not take the results"),
    ):
        raise error
    with (
        pytest.raises(TrackerDown),
        quiet(),
        errors_in_one_line("http://host", "did not take the results"),
    ):
        raise error


def test_a_damaged_database_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table t (x)")
        database.executemany("insert into t values (?)", [("x" * 500,)] * 100)
        database.commit()
    path.write_bytes(path.read_bytes()[:-5000])  # as a file system leaves it that lost power
    uri = f"sqlite:///{path}"
    with (
        pytest.raises(TrackerDown, match=rf"^MLflow at {uri} .*damaged: move it away, .* collect"),
        quiet(),
        errors_in_one_line(uri, "did not take the results"),
    ):
        connect(uri)


def test_the_status_of_a_server_that_fails_is_the_reason() -> None:
    trouble = pytest.raises(TrackerDown, match=r"is down: too many 500 error responses$")
    with trouble, quiet(), errors_in_one_line("http://host", "is down"):
        try:
            raise MaxRetryError(HTTPConnectionPool("host"), "/api") from ResponseError(
                "too many 500 error responses"
            )
        except MaxRetryError:
            raise MlflowException("API request to http://host/api failed: Max retries") from None


def test_the_scheme_of_a_server_may_have_capitals() -> None:
    assert is_server("HTTP://host")
    assert not is_server("sqlite:////home/me/mlflow.db")


class Server(BaseHTTPRequestHandler):
    """Answers with JSON that is no answer of MLflow's, or drips."""

    drips = False

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if not self.drips:
            self.wfile.write(b'{"experiment": 3}')
            return
        with suppress(OSError):
            while True:
                self.wfile.write(b" ")
                time.sleep(0.01)

    do_POST = do_GET  # noqa: N815 - its name is that of the method

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.mark.parametrize("drips", [False, True])
def test_an_answer_of_another_shape_or_without_an_end_is_one_line(
    drips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server, "drips", drips)
    monkeypatch.setattr(connect_module, "CALL_TIMEOUT", 0.5)
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}"
        expected = "no complete answer within" if drips else "no answer of MLflow's"
        with pytest.raises(TrackerDown, match=expected), quiet(), errors_in_one_line(uri, "failed"):
            connect(uri).get_experiment_by_name("demo")
        server.shutdown()


@pytest.mark.parametrize("name", ["a?b", "a%41b", "a#b"])
def test_a_folder_that_a_database_cant_be_in_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match=r"found . in the path of MLflow's database"):
        Tracker(Results(tmp_path / name))
    assert Tracker(Results(tmp_path / name), "http://127.0.0.1:1").uri == "http://127.0.0.1:1"
