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

import psutil
import pytest

from harness.core.paths import Results, TrialFolder
from harness.launch import forkserver
from harness.launch.interrupt import SAME_REQUEST
from harness.records.assignment import read_progress_file
from harness.records.files import read_record
from harness.sweep import sweep as spec
from harness.sweep.cell import Trial
from tests.support.commands import harness
from tests.support.running import (
    RecordCollector,
    line_sweep,
    local_profile,
    processes_below,
    run,
    wait_until,
)

pytestmark = pytest.mark.distributed

TWO = {"strategy": "ddp", "world_size": 2}


STEPS = 40
HOLD_AT = 30  # the step that lasts as long as there is the file `hold`


def held_sweep(folder: Path, hold: Path, **keys: Any) -> Path:
    """Write a sweep of two ranks that hold at a step, and return its path."""
    entry = {"options": {"hold_at": HOLD_AT, "hold": str(hold)}, "axes": TWO}
    return line_sweep(folder, {"held": entry}, length={"steps": STEPS}, **keys)


def arguments(sweep: Path) -> list[str]:
    """Return the arguments of `harness run`."""
    profile = local_profile(sweep.parent, slots=2)
    results = sweep.parent / "results"
    return ["--results", str(results), "run", str(sweep), "--cluster", str(profile)]


def environment() -> dict[str, str]:
    """Return this process's environment without the address of an MLflow server."""
    return {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}


def trial_folders(sweep: Path) -> list[TrialFolder]:
    """Return the folders of the sweep's trials, in their order."""
    loaded = spec.load_sweep(sweep)
    folder = Results(sweep.parent / "results").sweep_folder(loaded.name)
    return [folder.trial_folder(trial.id) for trial in loaded.trials()]


def trials_in_mlflow(sweep: Path) -> list[str]:
    """Return the trials that MLflow's database has a run for that holds, one entry a run."""
    query = """select tags.value from tags join runs using (run_uuid)
               where tags.key = 'harness.trial' and runs.lifecycle_stage = 'active'
               and run_uuid not in (select run_uuid from tags where key = 'harness.superseded')"""
    with closing(sqlite3.connect(sweep.parent / "results" / "mlflow.db")) as database:
        return [value for (value,) in database.execute(query)]


def failure_kinds(sweep: Path) -> list[str | None]:
    """Return the kind of each trial's failure, None for a trial that is done."""
    kinds: list[str | None] = []
    for folder in trial_folders(sweep):
        failure = read_record(folder.record_path).failure
        kinds.append(failure.kind if failure else None)
    return kinds


def forked() -> tuple[psutil.Process, psutil.Process]:
    """Return this process's forkserver of the running trial, and the trial's last rank."""
    servers = [server for server in forkserver._servers.values() if not server.has_ended]
    (server,) = [server for server in servers if not server.is_idle()]
    ranks = [pid for pid, exit_code in server.exit_codes.items() if exit_code is None]
    return psutil.Process(server.process.pid), psutil.Process(ranks[-1])


class Killer(RecordCollector):
    """A listener that kills something in each trial, once it has reached a step.

    `victims` names one for each trial: "rank" or "forkserver".
    Without one, a trial is left alone, and so is one that runs again: then `hold` is removed.
    """

    def __init__(self, *victims: str, step: int = 1, hold: Path | None = None) -> None:
        super().__init__()
        self.victims = list(victims)
        self.step = step
        self.hold = hold
        self.last_killed = ""  # the trial

    def on_trial_start(self, trial: Trial) -> None:
        if self.hold is None:
            return
        if self.victims and trial.id != self.last_killed:
            self.hold.touch()
        else:
            self.hold.unlink(missing_ok=True)

    def on_trial_progress(self, trial: Trial, progress: dict[str, Any]) -> None:
        has_reached = progress.get("step", 0) >= self.step
        if not self.victims or not has_reached or trial.id == self.last_killed:
            return
        self.last_killed = trial.id
        server, rank = forked()
        victim = {"rank": rank, "forkserver": server}[self.victims.pop(0)]
        victim.kill()


def heed_interrupts() -> None:
    """Let Ctrl-C interrupt, which a shell has what it starts in the background ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def running(sweep: Path, trial: TrialFolder) -> Iterator[subprocess.Popen[str]]:
    """Run `harness run` and yield it in the middle of a trial."""
    began = time.time()
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.cli", *arguments(sweep)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(),
        text=True,
        preexec_fn=heed_interrupts,
    )
    try:
        wait_until(lambda: process.poll() is not None or has_begun(trial, began))
        assert process.poll() is None, process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()


def has_begun(trial: TrialFolder, since: float) -> bool:
    """Return whether the trial has reported a step since then, in its newest attempt."""
    progress = read_progress_file(TrialFolder.newest(trial.path).progress_path)
    return bool(progress) and progress["step"] > 0 and progress["at"] > since


def interrupt_twice(command: subprocess.Popen[str]) -> None:
    """Press Ctrl-C, and once more when that was announced to be of use."""
    command.send_signal(signal.SIGINT)
    time.sleep(SAME_REQUEST + 0.5)
    command.send_signal(signal.SIGINT)


@pytest.mark.nightly
def test_a_sweep_survives_everything_that_can_be_killed(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    sweep = held_sweep(tmp_path, hold, seeds=[0, 1, 2])

    run(sweep, listener=Killer("rank", "forkserver", hold=hold))
    assert failure_kinds(sweep) == ["Killed", None, None]
    (lost,) = read_record(trial_folders(sweep)[1].record_path).previous_failures
    assert "left no result; its launcher: Killed, ended by SIGKILL" in lost.message
    hold.touch()
    first = trial_folders(sweep)[0]

    with running(sweep, first) as command:  # the harness itself
        refused = harness(*arguments(sweep))
        assert refused.code == 2
        assert f"process {command.pid} is running this sweep" in refused.err
        command.kill()
        command.wait()
    wait_until(lambda: processes_below(tmp_path) == [], 15)

    with running(sweep, first) as command:  # Ctrl-C while a rank hangs, so that it can't save
        interrupt_twice(command)
        output = command.communicate(timeout=30)[0]
        assert command.returncode == 130
        assert "run the same command again" in output
        assert processes_below(tmp_path) == []

    hold.unlink()
    ended = harness(*arguments(sweep))
    assert ended.code == 0, ended.err + ended.out
    records = [read_record(folder.record_path) for folder in trial_folders(sweep)]
    assert [record.status for record in records] == ["done"] * 3
    # A trial that Ctrl-C finds before the step in which it hangs saves, and is recorded as such.
    kinds = [{failure.kind for failure in record.previous_failures} for record in records]
    assert kinds[0] - {"Interrupted", "Lost"} == {"Killed"}
    assert kinds[1:] == [{"Lost"}, set()]
    assert len(Results(tmp_path / "results").sweep_folder("line").record_paths()) == 3
    assert sorted(trials_in_mlflow(sweep)) == sorted(record.trial.id for record in records)
    assert processes_below(tmp_path) == []
