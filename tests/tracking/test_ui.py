"""MLflow's server as `harness ui` runs it: on loopback only, and ended with all its processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.core.ports import free_port
from harness.tracking import Tracker, TrackerDown
from harness.tracking import tracker as tracker_module
from harness.tracking.connect import connect
from harness.tracking.ui import serve, server
from tests.support.mlflow import Meddler, everything, runs_of
from tests.support.running import wait_until
from tests.tracking.test_tracking_server import small_sweep


def server_processes(port: int) -> dict[int, str]:
    """Return the command lines of the processes of a server on `port`, by their ids: its guard first."""
    commands = {}
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or [])
        if f"--port {port}" in command and "harness.cli" not in command:
            commands[process.pid] = command
    return commands


def record_address(base: str, sweep: str) -> str:
    """Return the address from which MLflow's pages read the record of a sweep's trial."""
    trial = next(run for run in runs_of(base, sweep) if "seed" in run.info.run_name)
    return f"{base}/get-artifact?path=record.json&run_uuid={trial.info.run_id}"


def children_of_guard(port: int) -> list[psutil.Process]:
    """Return the processes of the server on `port`, without the guard that leads their session."""
    commands = server_processes(port)
    (guard,) = [pid for pid, command in commands.items() if "harness.tracking.ui" in command]
    return all_children(guard)


def all_children(process_id: int) -> list[psutil.Process]:
    """Return everything that a process has started."""
    members: list[psutil.Process] = psutil.Process(process_id).children(recursive=True)
    return members


def deliver_until_the_server_dies(
    results: Results, store: Tracker, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deliver a sweep to a server of a store that is killed before the 15th write."""
    with server(store, port=port) as base, monkeypatch.context() as patched:
        children = children_of_guard(port)

        def kill_it() -> None:
            for child in children:
                child.kill()

        patched.setattr(tracker_module, "connect", lambda uri: Meddler(connect(uri), 14, kill_it))
        with pytest.raises(TrackerDown, match=" collect demo --tracking-uri"):
            Tracker(results, base).deliver(results.sweep_folder("demo"))


@contextmanager
def harness_ui(results: Results, port: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `harness ui`; yield the process and its output once it is ready."""
    command = ["-m", "harness.cli", "--results", str(results.path), "ui", "--port", str(port)]
    environment = {**os.environ}
    environment.pop("MLFLOW_TRACKING_URI", None)
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout
    output = ""
    try:
        for line in process.stdout:
            output += line
            if "Ctrl-C" in line:
                break
        yield process, output
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.nightly
def test_a_delivery_to_a_server_that_died_is_completed_on_one_that_ends_with_all_its_processes(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test of both, as each server takes 10 s of CPU time."""
    small_sweep(results, "demo")
    store, port = Tracker(Results(results.path / "server")), free_port()
    small_sweep(store.results, "shown")
    shown = store.deliver(store.results.sweep_folder("shown"))
    deliver_until_the_server_dies(results, store, port, monkeypatch)
    base = f"http://127.0.0.1:{port}"
    with harness_ui(store.results, port) as (process, output):
        page = f"/#/experiments/{shown.experiment_id}/runs"
        assert f"shown: {base}{page}" in output
        with urllib.request.urlopen(record_address(base, "shown"), timeout=30) as answer:
            assert json.load(answer)["sweep"] == "shown"
        Tracker(results, base).deliver(results.sweep_folder("demo"))
        Tracker(results).deliver(results.sweep_folder("demo"))
        assert everything(base, "demo") == everything(f"sqlite:///{results.database}", "demo")
        listening = set()
        for child in children_of_guard(port):
            for connection in child.net_connections():
                if connection.status == psutil.CONN_LISTEN:
                    listening.add(connection.laddr.ip)
        assert listening == {"127.0.0.1"}
        # The store's URI may hold a password, and `ps` shows arguments to everybody.
        assert "sqlite:" not in str(server_processes(port))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        wait_until(lambda: not server_processes(port), 30)


# Starts a guard as `server` does; what it guards is a shell with a helper in the background.
GUARDED = """
import subprocess, sys, time
command = ["sh", "-c", "sleep 600 & sleep 600; true"]
guard = [sys.executable, "-P", "-m", "harness.tracking.ui", *command]
subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)
time.sleep(600)
"""


def test_all_that_is_guarded_ends_with_a_starter_that_is_killed() -> None:
    """Two processes and their shell, which is in the same session."""
    with subprocess.Popen([sys.executable, "-c", GUARDED]) as starter:
        wait_until(lambda: len(all_children(starter.pid)) == 4)
        members = all_children(starter.pid)
        starter.kill()
    _, running = psutil.wait_procs(members, timeout=30)
    assert not running


def test_a_port_in_use_is_bad_input(results: Results) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(BadInput, match=f"port {port} of 127.0.0.1 is in use"):
            serve(results, port=port)


@pytest.mark.nightly
def test_a_database_without_tables_is_completed_by_the_server_alone(results: Results) -> None:
    results.path.mkdir(exist_ok=True)
    results.database.touch()  # as a process leaves it that is killed while it makes the first one
    with harness_ui(results, free_port()) as (process, output):
        assert "MLflow shows" in output
        assert process.poll() is None
    assert everything(f"sqlite:///{results.database}", "demo") == {}


@pytest.mark.parametrize(
    "program", ["/bin/false", pytest.param(sys.executable, marks=pytest.mark.nightly)]
)
def test_a_damaged_database_is_named_with_what_to_do(
    results: Results, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """Whatever a server says before it ends, which it does at once where it is no server."""
    monkeypatch.setattr(sys, "executable", program)
    results.path.mkdir(exist_ok=True)
    results.database.write_bytes(bytes(range(256)) * 64)
    with (
        pytest.raises(TrackerDown, match=r"MLflow at sqlite:.*damaged: move it away"),
        server(Tracker(results), port=free_port()),
    ):
        pass
