"""A sweep keeps of each trial what commands need, and not the numbers of all its steps."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from harness.core.errors import BadFile
from harness.core.paths import Results, SweepFolder
from harness.core.scratch import LOCK_NAME, PREFIX
from harness.launch import sweep as runner
from harness.launch.runner import Runner
from harness.records.files import write_record
from harness.records.record import Record
from harness.sweep.cell import Trial
from harness.sweep.cluster import Profile, ValidityRules
from harness.sweep.sweep import Sweep
from tests.factories import make_record
from tests.support.reports import make_sweep
from tests.support.running import RecordCollector

PROFILE = Profile(device="cpu", validity=ValidityRules(contention=None))


def test_columns_of_trials_that_have_run_stay_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make_sweep(tmp_path)
    folder = Results(tmp_path).sweep_folder(sweep.name)
    made: list[Record] = []

    def run(self: Runner, trials: Sequence[Trial], *, fresh: bool) -> Iterator[Record]:
        for trial in trials:
            made.append(make_record(trial.cell, seed=trial.seed, sweep=sweep.name))
            write_record(folder.trial_folder(trial.id).record_path, made[-1])
            yield made[-1]

    monkeypatch.setattr(Runner, "run", run)
    listener = RecordCollector()
    records = runner.run(sweep, PROFILE, folder, listener, redo="missing", fail_fast=False)
    assert [record.trial.id for record in records] == [record.trial.id for record in made]
    for path in folder.path.glob("*/*.npz"):
        path.unlink()
    with pytest.raises(BadFile):
        list(records[0].ranks)


def record_all(folder: Path) -> tuple[Sweep, SweepFolder]:
    """Leave the record of each trial of a sweep."""
    sweep = make_sweep(folder)
    sweep_folder = Results(folder).sweep_folder(sweep.name)
    for trial in sweep.trials():
        record = make_record(trial.cell, seed=trial.seed, sweep=sweep.name)
        write_record(sweep_folder.trial_folder(trial.id).record_path, record)
    return sweep, sweep_folder


def test_a_trial_whose_columns_were_moved_away_runs_again(tmp_path: Path) -> None:
    """As errors about damaged columns say."""
    sweep, folder = record_all(tmp_path)
    assert runner.plan(sweep, folder, "failed").pending == []
    first = sweep.trials()[0]
    (columns,) = folder.trial_folder(first.id).path.glob("*.npz")
    columns.unlink()
    assert runner.plan(sweep, folder, "failed").pending == [first]


def test_what_a_finished_trial_needs_no_more_goes_though_its_command_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had written the record, and was killed before it had removed the rest."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned = tmp_path / f"{PREFIX}forkserver"
    abandoned.mkdir()
    (abandoned / LOCK_NAME).touch()  # which nobody holds
    sweep, folder = record_all(tmp_path)
    leftovers = [abandoned]
    for trial in sweep.trials():
        trial_folder = folder.trial_folder(trial.id)
        (trial_folder.resume_checkpoints / "step-000000003").mkdir(parents=True)
        trial_folder.result_path(1).write_text("{}")
        leftovers += [trial_folder.resume_checkpoints, trial_folder.result_path(1)]
    runner.run(sweep, PROFILE, folder, RecordCollector(), redo="missing", fail_fast=False)
    assert [path for path in leftovers if path.exists()] == []
