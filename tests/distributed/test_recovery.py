"""Whatever ends a command in the middle of a sweep: run again, and every trial is recorded exactly once."""

from __future__ import annotations

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
from harness.sweep.cell import Trial
from harness.sweep.sweep import load_sweep
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


class ForkserverKiller(RecordCollector):
    """A listener that kills the forkserver of the first trial once that trains, and then lets trials end."""

    def __init__(self, hold: Path) -> None:
        super().__init__()
        self.hold = hold

    def on_trial_progress(self, trial: Trial, progress: dict[str, Any]) -> None:
        if progress.get("step", 0) >= 1 and self.hold.exists():
            self.hold.unlink()
            (server,) = [each for each in forkserver._servers.values() if not each.is_idle()]
            psutil.Process(server.process.pid).kill()


def heed_interrupts() -> None:
    """Let Ctrl-C interrupt, which a shell has what it starts in the background ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def running(arguments: list[str], trial: TrialFolder) -> Iterator[subprocess.Popen[str]]:
    """Run a command and yield it in the middle of a trial."""
    began = time.time()
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
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


@pytest.mark.nightly
def test_a_sweep_survives_everything_that_can_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    hold = tmp_path / "hold"
    hold.touch()
    # A step of two ranks lasts as long as there is the file.
    entry = {
        "options": {"hold_at": 30, "hold": str(hold)},
        "axes": {"strategy": "ddp", "world_size": 2},
    }
    sweep = line_sweep(tmp_path, {"held": entry}, length={"steps": 40}, seeds=[0, 1])
    folder = Results(tmp_path / "results").sweep_folder("line")
    trial_ids = [trial.id for trial in load_sweep(sweep).trials()]
    first = folder.trial_folder(trial_ids[0])
    profile = local_profile(tmp_path, slots=2)
    arguments = ["--results", str(tmp_path / "results"), "run", str(sweep)]
    arguments += ["--cluster", str(profile)]

    with running(arguments, first) as command:  # the harness itself
        refused = harness(*arguments)
        assert refused.code == 2
        assert f"process {command.pid} is running this sweep" in refused.err
        command.kill()
        command.wait()
    wait_until(lambda: processes_below(tmp_path) == [], 15)

    # Ctrl-C while a rank hangs, so that it can't save.
    with running(arguments, first) as command:
        command.send_signal(signal.SIGINT)
        time.sleep(SAME_REQUEST + 0.5)  # until it was announced what once more is of use for
        command.send_signal(signal.SIGINT)
        output = command.communicate(timeout=30)[0]
        assert command.returncode == 130
        assert "goes on when its command is repeated" in output
        assert processes_below(tmp_path) == []

    run(sweep, listener=ForkserverKiller(hold))
    ended = harness(*arguments)
    assert ended.code == 0, ended.err + ended.out
    records = [read_record(folder.trial_folder(trial_id).record_path) for trial_id in trial_ids]
    assert [record.status for record in records] == ["done"] * 2
    # A trial that Ctrl-C finds before the step in which it hangs saves, and is recorded as such.
    kinds = [{failure.kind for failure in record.previous_failures} for record in records]
    assert kinds == [{"Interrupted", "Lost"}, set()]
    assert "its launcher: Killed, ended by SIGKILL" in records[0].previous_failures[-1].message
    assert len(folder.record_paths()) == 2
    assert trials_in_mlflow(tmp_path) == sorted(record.trial.id for record in records)
    assert processes_below(tmp_path) == []


def trials_in_mlflow(folder: Path) -> list[str]:
    """Return the trials that MLflow's database has a run for that holds, one entry a run."""
    query = """select tags.value from tags join runs using (run_uuid)
               where tags.key = 'harness.trial' and runs.lifecycle_stage = 'active'
               and run_uuid not in (select run_uuid from tags where key = 'harness.superseded')"""
    with closing(sqlite3.connect(folder / "results" / "mlflow.db")) as database:
        return sorted(value for (value,) in database.execute(query))
