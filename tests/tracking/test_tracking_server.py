"""Delivering to a real MLflow server, to one that dies, and to addresses without a server."""

from __future__ import annotations

import socket

import pytest

from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.core.ports import free_port
from harness.tracking import Tracker, TrackerDown
from harness.tracking.connect import check_uri
from tests.factories import make_cell, make_record, write_sweep
from tests.support.mlflow import everything


def small_sweep(results: Results, name: str) -> None:
    """Write a sweep of two cells and three trials, of which one failed."""
    records = [make_record(sweep=name), make_record(seed=1, status="failed", sweep=name)]
    records.append(make_record(make_cell(steps=1500, strategy="ddp", world_size=2), sweep=name))
    write_sweep(results.sweep_folder(name), records)


@pytest.mark.nightly
def test_a_server_shows_the_same_as_a_database(results: Results, mlflow_server: str) -> None:
    small_sweep(results, "same")
    Tracker(results).deliver(results.sweep_folder("same"))
    Tracker(results, mlflow_server).deliver(results.sweep_folder("same"))
    assert everything(mlflow_server, "same") == everything(f"sqlite:///{results.database}", "same")


@pytest.mark.parametrize("silent", [False, True])
def test_a_missing_server_costs_one_line(results: Results, silent: bool) -> None:
    small_sweep(results, "demo")
    with socket.create_server(("127.0.0.1", 0)) as listening:  # which never answers
        port = listening.getsockname()[1] if silent else free_port()
        tracker = Tracker(results, f"http://me:hunter2@127.0.0.1:{port}")
        with pytest.raises(TrackerDown) as caught:
            tracker.deliver(results.sweep_folder("demo"))
    assert "hunter2" not in str(caught.value)
    assert " collect demo" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 1


def test_what_delivers_later_can_be_pasted(results: Results) -> None:
    small_sweep(results, "my sweep")
    uri = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(TrackerDown) as caught:
        Tracker(results, uri).deliver(results.sweep_folder("my sweep"))
    command = f"harness --results {results.path} collect 'my sweep' --tracking-uri {uri}"
    assert f"`{command}` delivers" in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    ["ftp://host/x", "localhost:5000", "/some/folder", "file:///tmp/x", "http://", "http://[x"],
)
def test_impossible_tracking_uris_are_refused(results: Results, uri: str) -> None:
    for possible in ("postgresql+psycopg2://me:x@db/mlflow", "https://example.org", "databricks"):
        check_uri(possible)
    with pytest.raises(BadInput, match=r"^tracking URI: found [^\n]*$"):
        Tracker(results, uri)


def test_a_folder_without_records_is_bad_input(results: Results) -> None:
    with pytest.raises(BadInput, match="found no record"):
        Tracker(results).deliver(results.sweep_folder("nothing"))
