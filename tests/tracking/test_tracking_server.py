"""Delivering to a real MLflow server, to one that dies, and to addresses without a server."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.tracking import Tracker, TrackerDown
from harness.tracking import tracker as tracker_module
from harness.tracking.connect import check_uri, connect
from tests.conftest import free_port
from tests.factories import make_cell, make_record, write_sweep, write_trial
from tests.support.mlflow import Meddler, artifact_text, by_name, everything


def small_sweep(results: Results, name: str) -> None:
    """Write a sweep of two cells and three trials, of which one failed."""
    records = [make_record(sweep=name), make_record(seed=1, status="failed", sweep=name)]
    records.append(make_record(make_cell(steps=1500, strategy="ddp", world_size=2), sweep=name))
    write_sweep(results.sweep_folder(name), records)


def test_a_server_shows_the_same_as_a_database(results: Results, mlflow_server: str) -> None:
    small_sweep(results, "same")
    Tracker(results).deliver(results.sweep_folder("same"))
    Tracker(results, mlflow_server).deliver(results.sweep_folder("same"))
    assert everything(mlflow_server, "same") == everything(f"sqlite:///{results.database}", "same")


def test_delivering_again_adds_nothing(
    results: Results, mlflow_server: str, tmp_path: Path
) -> None:
    small_sweep(results, "again")
    folder = results.sweep_folder("again")
    tracker = Tracker(results, mlflow_server)
    tracker.deliver(folder)
    before = everything(mlflow_server, "again")
    assert tracker.deliver(folder).delivered == 0
    assert everything(mlflow_server, "again") == before
    write_trial(folder, make_record(seed=1, attempt=2, sweep="again", started=1_700_000_300.0))
    assert tracker.deliver(folder).delivered == 1
    runs = by_name(mlflow_server, "again")
    assert len(runs) == len(before)
    run = runs["mlp eager fp32 single w0 b64 t1 seed 1"]
    assert '"attempt": 2' in artifact_text(mlflow_server, run, "record.json", tmp_path / "got")


class Forwarder:
    """A port that leads to a server until it is closed: then, to its clients, the server has died."""

    def __init__(self, server: str, port: int) -> None:
        url = urlsplit(server)
        assert url.hostname is not None
        assert url.port is not None
        self.server_address = (url.hostname, url.port)
        self.listener = socket.create_server(("127.0.0.1", port))
        self.address = f"http://127.0.0.1:{port}"
        self.sockets: list[socket.socket] = []
        self.threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self.threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        """Forward every connection, both ways."""
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:  # it was shut down
                return
            server = socket.create_connection(self.server_address)
            self.sockets += [client, server]
            self._start(_copy, client, server)
            self._start(_copy, server, client)

    def close(self) -> None:
        """Refuse new connections and break those that are open."""
        for opened in (self.listener, *self.sockets):
            with suppress(OSError):  # the other end may have closed it
                opened.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        for opened in (self.listener, *self.sockets):
            opened.close()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    """Send on what arrives until either end is closed."""
    with suppress(OSError):
        while content := source.recv(65536):
            sink.sendall(content)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def test_a_delivery_to_a_server_that_died_can_be_completed(
    results: Results, mlflow_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_sweep(results, "died")
    folder = results.sweep_folder("died")
    port = free_port()
    forwarder = Forwarder(mlflow_server, port)
    meddlers: list[Meddler] = []

    def connect_meddler(uri: str) -> Meddler:
        meddlers.append(Meddler(connect(uri), 14, forwarder.close))
        return meddlers[-1]

    monkeypatch.setattr(tracker_module, "connect", connect_meddler)
    with pytest.raises(TrackerDown, match="harness collect died"):
        Tracker(results, forwarder.address).deliver(folder)
    assert [meddler.calls for meddler in meddlers] == [15]
    monkeypatch.undo()
    forwarder = Forwarder(mlflow_server, port)
    try:
        Tracker(results, forwarder.address).deliver(folder)
    finally:
        forwarder.close()
    Tracker(results).deliver(folder)
    assert everything(mlflow_server, "died") == everything(f"sqlite:///{results.database}", "died")


@contextmanager
def silent_server() -> Iterator[str]:
    """Accept connections and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("silent", [False, True])
def test_a_missing_server_costs_seconds_and_one_line(results: Results, silent: bool) -> None:
    small_sweep(results, "demo")
    with silent_server() as base:
        uri = (
            base.replace("//", "//me:hunter2@")
            if silent
            else f"http://me:hunter2@127.0.0.1:{free_port()}"
        )
        tracker = Tracker(results, uri)
        start = time.monotonic()
        with pytest.raises(TrackerDown) as caught:
            tracker.deliver(results.sweep_folder("demo"))
    assert time.monotonic() - start < 10
    assert "hunter2" not in str(caught.value)
    assert "harness collect demo" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 1


def test_a_file_that_is_no_database(results: Results) -> None:
    small_sweep(results, "demo")
    results.database.write_bytes(b"no database" * 1000)
    start = time.monotonic()
    with pytest.raises(TrackerDown, match="harness collect demo"):
        Tracker(results).deliver(results.sweep_folder("demo"))
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    "uri",
    ["ftp://host/x", "localhost:5000", "/some/folder", "file:///tmp/x", "http://", "nonsense"],
)
def test_impossible_tracking_uris_are_refused(results: Results, uri: str) -> None:
    with pytest.raises(BadInput, match="tracking URI: found") as caught:
        Tracker(results, uri)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "uri", ["postgresql+psycopg2://me:x@db/mlflow", "https://mlflow.example.org", "databricks"]
)
def test_tracking_uris_of_servers_and_databases_are_accepted(uri: str) -> None:
    check_uri(uri)


def test_a_folder_without_records_is_bad_input(results: Results) -> None:
    with pytest.raises(BadInput, match="found no record"):
        Tracker(results).deliver(results.sweep_folder("nothing"))


def test_nothing_imports_mlflow_before_it_is_needed() -> None:
    code = "import sys, harness.cli.main, harness.tracking, harness.tracking.ui; sys.exit('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
