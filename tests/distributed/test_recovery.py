"""Whatever is killed in the middle of a sweep: run again, and every trial is recorded exactly once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.core.paths import Results, TrialFolder
from harness.launch.interrupt import SAME_REQUEST
from harness.launch.runner import read_progress
from harness.records.record import read_record
from harness.spec import sweep as spec
from tests.support.running import line_sweep, local_profile, processes_below, run, wait_until

pytestmark = pytest.mark.distributed

TWO = {"strategy": "ddp", "world_size": 2}


def command(sweep: Path, **keys: bool) -> list[str]:
    """`harness run`, with these keys in its profile."""
    profile, results = str(local_profile(sweep.parent, **keys)), str(sweep.parent / "results")
    return [
        sys.executable,
        "-m",
        "harness.cli",
        "run",
        str(sweep),
        "--cluster",
        profile,
        "--results",
        results,
    ]


def quiet() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}


def folders(sweep: Path) -> list[TrialFolder]:
    """Of the sweep's trials, in their order."""
    asked = spec.load_sweep(sweep)
    folder = Results(sweep.parent / "results").sweep_folder(asked.name)
    return [folder.trial_folder(trial.id) for trial in asked.trials()]


def mlflow_trials(sweep: Path) -> list[str]:
    """The trials that MLflow's database has a live run for, one entry a run."""
    query = """select tags.value from tags join runs using (run_uuid)
               where tags.key = 'harness.trial' and runs.lifecycle_stage = 'active'"""
    with closing(sqlite3.connect(sweep.parent / "results" / "mlflow.db")) as database:
        return [value for (value,) in database.execute(query)]


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return [int(child) for child in listed]


def heed_interrupts() -> None:
    """A shell has what it starts in the background ignore Ctrl-C, this test included."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def running(
    sweep: Path, trial: TrialFolder, step: int = 1, **keys: bool
) -> Iterator[subprocess.Popen[str]]:
    """`harness run`, in the middle of a trial."""
    began = time.time()
    process = subprocess.Popen(
        command(sweep, **keys),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=quiet(),
        text=True,
        preexec_fn=heed_interrupts,
    )
    try:
        wait_until(lambda: process.poll() is not None or reached(trial, began) >= step)
        assert process.poll() is None, process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()


def interrupt_twice(harness: subprocess.Popen[str]) -> None:
    """Press Ctrl-C, and once more when that was announced to be of use."""
    harness.send_signal(signal.SIGINT)
    time.sleep(SAME_REQUEST + 0.5)
    harness.send_signal(signal.SIGINT)


def reached(trial: TrialFolder, since: float) -> int:
    """The step that the trial has told of; 0 if it has told nothing since then."""
    told = read_progress(trial)
    return int(told["step"]) if told and told["at"] > since else 0


def failure_kind(trial: TrialFolder) -> str | None:
    failure = read_record(trial.record_path).failure
    return failure.kind if failure else None


def test_a_sweep_survives_everything_that_can_be_killed(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    held = {"options": {"hold_at": 30, "hold": str(hold)}, "axes": TWO}
    sweep = line_sweep(tmp_path, {"held": held}, length={"steps": 40}, seeds=[0, 1])
    first, second = folders(sweep)

    with running(
        sweep, first
    ) as harness:  # a rank is killed, then in the next trial what has forked its ranks
        (forkserver,) = children(harness.pid)
        (parent,) = children(forkserver)
        os.kill(children(parent)[-1], signal.SIGKILL)
        wait_until(lambda: reached(second, 0.0) > 0)
        (parent,) = children(forkserver)
        os.kill(parent, signal.SIGKILL)
        assert harness.wait(120) == 1
    assert [failure_kind(first), failure_kind(second)] == ["Killed", "Lost"]

    with running(sweep, first) as harness:  # the forkserver
        (forkserver,) = children(harness.pid)
        os.kill(forkserver, signal.SIGKILL)
        killed = time.time()
        wait_until(lambda: reached(second, killed) > 0)
        interrupt_twice(harness)
        harness.communicate(timeout=30)
    assert failure_kind(first) == "Lost"

    with running(sweep, first) as harness:  # the harness itself
        refused = subprocess.run(
            command(sweep), capture_output=True, text=True, env=quiet(), timeout=60, check=False
        )
        assert refused.returncode == 2
        assert f"process {harness.pid} is running this sweep" in refused.stderr
        harness.kill()
        harness.wait()
    wait_until(lambda: processes_below(tmp_path) == [], 15)

    with running(sweep, first) as harness:  # Ctrl-C while a rank hangs, so that it can't save
        interrupt_twice(harness)
        output = harness.communicate(timeout=30)[0]
        assert harness.returncode == 130
        assert "run the same command again" in output
        assert processes_below(tmp_path) == []

    hold.unlink()
    subprocess.run(command(sweep), check=True, capture_output=True, env=quiet(), timeout=200)
    found = [read_record(trial.record_path) for trial in (first, second)]
    assert [one.status for one in found] == ["done", "done"]
    # A trial that Ctrl-C finds before the step in which it hangs saves, and is recorded as such.
    kinds = [{failure.kind for failure in record.previous_failures} for record in found]
    assert kinds[0] - {"Interrupted"} == {"Killed", "Lost"}
    assert kinds[1] - {"Interrupted"} == {"Lost"}
    assert len(Results(tmp_path / "results").sweep_folder("line").record_paths()) == 2
    assert sorted(mlflow_trials(sweep)) == sorted(one.trial.id for one in found)
    assert processes_below(tmp_path) == []


def test_a_torchrun_that_is_killed_takes_its_ranks_along(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    held = {"options": {"hold_at": 30, "hold": str(hold)}, "axes": TWO}
    sweep = line_sweep(tmp_path, {"held": held}, length={"steps": 40})
    (trial,) = folders(sweep)
    with running(sweep, trial, forkserver=False) as harness:
        (torchrun,) = children(harness.pid)
        os.kill(torchrun, signal.SIGKILL)
        assert harness.wait(120) == 1
    assert failure_kind(trial) == "Lost"
    wait_until(lambda: processes_below(tmp_path) == [], 15)


def test_a_trial_resumed_from_its_best_checkpoint_equals_an_uninterrupted_one(
    tmp_path: Path,
) -> None:
    keys: dict[str, Any] = {
        "length": {"steps": 60},
        "evaluate": {"steps": 10},
        "checkpoint": "best",
    }
    hold = tmp_path / "hold"
    options = {"dropout": 0.3, "hold_at": 35, "hold": str(hold)}
    whole_folder, cut_folder = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole_folder, cut_folder):
        folder.mkdir()
    (whole,) = run(line_sweep(whole_folder, {"line": {"options": options, "axes": TWO}}, **keys))
    path = line_sweep(cut_folder, {"line": {"options": options, "axes": TWO}}, **keys)
    hold.touch()
    with running(path, folders(path)[0], step=30) as harness:
        harness.kill()
    hold.unlink()
    wait_until(lambda: processes_below(cut_folder) == [], 15)
    (resumed,) = run(path)
    (taken_up,) = resumed.ranks[0].interruptions
    assert taken_up.signal is None
    assert taken_up.step in (10, 20, 30)
    assert whole.rank0 is not None
    assert resumed.rank0 is not None
    assert resumed.rank0.parameter_digest == whole.rank0.parameter_digest
    assert resumed.order_digest == whole.order_digest
    assert resumed.loss == whole.loss
    assert [one.metrics for one in resumed.rank0.evaluations] == [
        one.metrics for one in whole.rank0.evaluations
    ]
    assert resumed.rank0.checkpoint == whole.rank0.checkpoint
