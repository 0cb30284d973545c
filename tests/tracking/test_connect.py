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
from urllib3 import HTTPConnectionPool
from urllib3.exceptions import MaxRetryError, ResponseError

from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.tracking import Tracker
from harness.tracking import connect as connect_module
from harness.tracking.connect import TrackerDown, check_uri, connect, describe_trouble, shown_uri


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("https://host:5000/x", "https://host:5000/x"),
        ("https://me:hunter2@host/x?token=hunter2#hunter2", "https://host/x"),
        ("https://u:hun/ter2@host/x", "https://host/x"),
        ("https://u:hun?ter2@host/x", "https://…"),
        ("postgresql://u:hunter2@host:5432/db", "postgresql://host:5432/db"),
        ("postgresql+psycopg2://u:hun/ter2@host/db", "postgresql+psycopg2://host/db"),
        ("postgresql://u:hunt@er2@host/db", "postgresql://host/db"),
        ("postgresql://host/db?password=hun@ter2", "postgresql://…"),
        ("postgresql://host/db?user=u&password=hunter2", "postgresql://host/db"),
        ("postgresql://u/v:hunter2@host:port/db", "postgresql://host:port/db"),
        ("mssql+pyodbc:///?odbc_connect=PWD%3Dhunter2", "mssql+pyodbc:///"),
        ("mysql://u:hunter2@[::1]:3306/db", "mysql://[::1]:3306/db"),
        ("sqlite:////home/me/mlflow.db?mode=ro", "sqlite:////home/me/mlflow.db"),
        ("databricks", "databricks"),
    ],
)
def test_uri_is_shown_without_credentials_and_query(uri: str, expected: str) -> None:
    assert shown_uri(uri) == expected


def test_no_message_repeats_a_password() -> None:
    with pytest.raises(BadInput, match="'ftp://host'") as refusal:
        check_uri("ftp://u:hun/ter2@host")
    assert "ter2" not in str(refusal.value)
    uri = "postgresql://u:hun%2Fter2@host/db"
    trouble = describe_trouble(uri, OSError(f"can't connect to {uri}"))
    assert trouble == "MLflow at postgresql://host/db: can't connect to postgresql://host/db"


def test_a_damaged_database_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table t (x)")
        database.executemany("insert into t values (?)", [("x" * 500,)] * 100)
        database.commit()
    path.write_bytes(path.read_bytes()[:-5000])  # as a file system leaves it that lost power
    named = rf"^MLflow at sqlite:///{path}: .*damaged: move it away, .* collect"
    with pytest.raises(TrackerDown, match=named):
        connect(f"sqlite:///{path}")


def test_the_status_of_a_server_that_fails_is_the_reason() -> None:
    error = MlflowException("API request to http://host/api failed: Max retries")
    error.__context__ = MaxRetryError(HTTPConnectionPool("host"), "/api")
    error.__context__.__cause__ = ResponseError("too many 500 error responses")
    trouble = describe_trouble("http://host", error)
    assert trouble == "MLflow at http://host: too many 500 error responses"


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
        expected = "no complete answer within" if drips else "Error: "
        with pytest.raises(TrackerDown, match=expected):
            connect(uri).get_experiment_by_name("demo")
        server.shutdown()


@pytest.mark.parametrize("name", ["a?b", "a%41b", "a#b"])
def test_a_folder_that_a_database_cant_be_in_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match=r"found \?, % or # in the path of MLflow's database"):
        Tracker(Results(tmp_path / name))
    assert Tracker(Results(tmp_path / name), "http://127.0.0.1:1").uri == "http://127.0.0.1:1"
