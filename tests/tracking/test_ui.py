"""MLflow's server as `harness ui` runs it: where it says, on loopback, and gone when it should be."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.tracking import Tracker
from harness.tracking.ui import serve, server
from tests.conftest import free_port
from tests.factories import make_record, write_sweep
from tests.support.mlflow import runs_of
from tests.support.running import wait_until


def processes_of(port: int) -> list[str]:
    """The command lines of whatever has to do with a server on `port`."""
    found = subprocess.run(
        ["ps", "-eww", "-o", "args="], capture_output=True, text=True, check=True
    ).stdout
    return [
        words for words in found.splitlines() if "python" in words and f"--port {port}" in words
    ]


def record_address(results: Results, port: int) -> str:
    """Where MLflow's pages get the record of the only trial from."""
    trial = next(
        run
        for run in runs_of(f"sqlite:///{results.database}", "demo")
        if "seed" in run.info.run_name
    )
    return f"http://127.0.0.1:{port}/get-artifact?path=record.json&run_uuid={trial.info.run_id}"


@contextmanager
def harness_ui(results: Results, port: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`harness ui`, and what it has said when it is ready."""
    command = [
        sys.executable,
        "-m",
        "harness.cli",
        "ui",
        "--results",
        str(results.path),
        "--port",
        str(port),
    ]
    environment = {
        name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"
    }
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout
    said = ""
    try:
        for line in process.stdout:
            said += line
            if "Ctrl-C" in line:
                break
        yield process, said
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_all_its_processes(results: Results, ending: signal.Signals) -> None:
    write_sweep(results.sweep_folder("demo"), [make_record()])
    delivery = Tracker(results).deliver(results.sweep_folder("demo"))
    port = free_port()
    with harness_ui(results, port) as (process, said):
        assert f"demo: http://127.0.0.1:{port}/#/experiments/{delivery.experiment_id}/runs" in said
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(record_address(results, port), timeout=30) as answer:
            assert json.load(answer)["sweep"] == "demo"
        assert processes_of(port)
        process.send_signal(ending)
        assert process.wait(30) == (0 if ending != signal.SIGKILL else -signal.SIGKILL)
        wait_until(
            lambda: not [words for words in processes_of(port) if "harness.cli" not in words],
            30,
        )


def test_a_port_in_use_is_one_line(results: Results) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(BadInput, match=f"port {port} of 127.0.0.1 is in use"):
            serve(results, port=port)


def test_it_is_served_to_this_machine_only(results: Results) -> None:
    with (
        pytest.raises(BadInput, match=re.escape("0.0.0.0")),
        server(Tracker(results), host="0.0.0.0"),
    ):
        pass


def test_a_server_that_runs_already_is_pointed_to(
    results: Results, mlflow_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sweep(results.sweep_folder("pointed"), [make_record(sweep="pointed")])
    delivery = Tracker(results, mlflow_server).deliver(results.sweep_folder("pointed"))
    serve(results, mlflow_server)
    assert (
        f"pointed: {mlflow_server}/#/experiments/{delivery.experiment_id}/runs"
        in capsys.readouterr().out
    )
