"""Whatever is killed in the middle of a sweep: run again, and every trial is recorded exactly once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import record
from harness.paths import Results, TrialFolder
from tests.support.running import line_sweep, processes_below, run, wait_until

pytestmark = pytest.mark.distributed

TWO = {"strategy": "ddp", "world_size": 2}
SLOW = {"options": {"step_seconds": 0.05}, "axes": TWO}


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return line_sweep(tmp_path, {"slow": SLOW}, length={"steps": 60}, seeds=[0, 1])


@pytest.fixture
def started(sweep: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`harness run`, in the middle of its first trial."""
    process = subprocess.Popen(command(sweep), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=quiet())
    trial = first_trial(sweep)
    try:
        wait_until(lambda: trial.progress.exists() or process.poll() is not None)
        assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.communicate()


def command(sweep: Path) -> list[str]:
    results = str(sweep.parent / "results")
    return [sys.executable, "-m", "harness.cli", "run", str(sweep), "--results", results]


def quiet() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}


def first_trial(sweep: Path) -> TrialFolder:
    from harness import spec

    asked = spec.load(sweep)
    return Results(sweep.parent / "results").sweep(asked.name).trial(asked.trials()[0].id)


def finish(sweep: Path) -> None:
    """Run again, and see that it is complete: two trials, one record and one MLflow run each, and nothing running."""
    subprocess.run(command(sweep), check=True, capture_output=True, env=quiet(), timeout=200)
    folder = Results(sweep.parent / "results").sweep("line")
    found = [record.read(path) for path in folder.records()]
    assert sorted((one.trial.seed, one.status) for one in found) == [(0, "done"), (1, "done")]
    assert sorted(mlflow_trials(sweep)) == sorted(one.trial.id for one in found)
    assert processes_below(sweep.parent) == []


def mlflow_trials(sweep: Path) -> list[str]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{(sweep.parent / 'results' / 'mlflow.db').absolute()}")
    (experiment,) = client.search_experiments(filter_string="name = 'line'")
    runs = client.search_runs([experiment.experiment_id], filter_string="tags.`harness.kind` = 'trial'")
    return [run.data.tags["harness.trial"] for run in runs]


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return [int(child) for child in listed]


def test_the_harness_is_killed(started: subprocess.Popen[bytes], sweep: Path) -> None:
    started.kill()
    started.wait()
    wait_until(lambda: processes_below(sweep.parent) == [], 15)
    assert not first_trial(sweep).record.exists()
    finish(sweep)


def test_torchrun_is_killed(started: subprocess.Popen[bytes], sweep: Path) -> None:
    (torchrun,) = children(started.pid)
    os.kill(torchrun, signal.SIGKILL)
    assert started.wait(120) == 1
    failure = record.read(first_trial(sweep).record).failure
    assert failure is not None
    assert failure.kind == "Lost"
    finish(sweep)


def test_a_rank_is_killed(started: subprocess.Popen[bytes], sweep: Path) -> None:
    (torchrun,) = children(started.pid)
    os.kill(children(torchrun)[-1], signal.SIGKILL)
    assert started.wait(120) == 1
    failure = record.read(first_trial(sweep).record).failure
    assert failure is not None
    assert failure.kind == "Killed"
    finish(sweep)


def test_ctrl_c_ends_every_child_and_leaves_a_resumable_sweep(started: subprocess.Popen[bytes], sweep: Path) -> None:
    started.send_signal(signal.SIGINT)
    output = started.communicate(timeout=30)[0].decode()
    assert started.returncode == 130
    assert "run the same command again" in output
    assert processes_below(sweep.parent) == []
    finish(sweep)


def test_a_second_run_of_the_same_sweep_is_refused(started: subprocess.Popen[bytes], sweep: Path) -> None:
    second = subprocess.run(command(sweep), capture_output=True, text=True, env=quiet(), timeout=60, check=False)
    assert second.returncode == 2
    assert f"process {started.pid} is at work on this sweep" in second.stderr


def test_a_trial_resumed_from_its_best_checkpoint_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"length": {"steps": 60}, "evaluate": {"steps": 10}, "checkpoint": "best"}
    options = {"dropout": 0.3, "step_seconds": 0.02}
    whole_folder, cut_folder = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole_folder, cut_folder):
        folder.mkdir()
    (whole,) = run(line_sweep(whole_folder, {"line": {"options": options, "axes": TWO}}, **keys))
    path = line_sweep(cut_folder, {"line": {"options": options, "axes": TWO}}, **keys)
    process = subprocess.Popen(command(path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=quiet())
    place = first_trial(path)
    wait_until(lambda: place.progress.exists() and json.loads(place.progress.read_text())["step"] >= 30)
    process.kill()
    process.wait()
    wait_until(lambda: processes_below(cut_folder) == [], 15)
    (resumed,) = run(path)
    assert resumed.ranks[0].resumed_at
    assert whole.learned is not None
    assert resumed.learned is not None
    assert resumed.learned.parameter_digest == whole.learned.parameter_digest
    assert resumed.order_digest == whole.order_digest
    assert resumed.loss == whole.loss
    assert [one.metrics for one in resumed.learned.evaluations] == [one.metrics for one in whole.learned.evaluations]
    assert resumed.learned.checkpoint == whole.learned.checkpoint
