"""What an attempt leaves for the one after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.core.errors import StorageError
from harness.core.paths import SweepFolder
from harness.launch.interrupt import StopRequest
from harness.launch.lanes import Group
from harness.launch.runner import Life, Runner, TrialListener
from harness.launch.sweep import plan
from harness.launch.torchrun import Torchrun
from harness.records.assignment import Lane
from harness.sweep.cell import Trial
from harness.sweep.cluster import Profile
from tests.factories import make_record, write_trial
from tests.support.sweeps import load


def make_runner(folder: Path, seeds: int) -> Runner:
    """Return the runner of a sweep of one cell with so many seeds."""
    return Runner(
        sweep=load(folder, seeds=list(range(seeds))),
        profile=Profile(),
        folder=SweepFolder(folder / "results" / "runs" / "sweep"),
        launcher=Torchrun(environment={}),
        listener=TrialListener(),
        stop=StopRequest(),
    )


def test_a_trial_that_runs_again_from_the_start_is_not_done_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before it has begun, it would count as done, with nothing of what its record names."""
    runner = make_runner(tmp_path, 1)
    (trial,) = runner.sweep.trials()
    write_trial(runner.folder, make_record(trial.cell, attempt=3))
    assert plan(runner.sweep, runner.folder, "missing").pending == []

    def end(path: Path, **options: bool) -> None:
        raise SystemExit

    monkeypatch.setattr("harness.launch.attempts.shutil.rmtree", end)
    with pytest.raises(SystemExit):
        list(runner.run([trial], fresh=True))
    assert plan(runner.sweep, runner.folder, "missing").pending == [trial]
    assert runner.folder.trial_folder(trial.id).attempt == 4


def test_an_error_of_one_trial_has_those_beside_it_save_their_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def arrange(trials: Sequence[Trial], profile: Profile) -> list[Group]:
        return [Group(lanes=[Lane(number=number, count=2) for number in range(2)], trials=trials)]

    def live(self: Runner, trial: Trial, *_: object, **options: bool) -> Life:
        yield
        if trial.seed == 0:
            raise StorageError("rank0.log: No space left on device")
        while not self.stop.reason():
            yield
        return make_record(trial.cell, seed=trial.seed, status="interrupted")

    monkeypatch.setattr(Runner, "_run_with_resumes", live)
    monkeypatch.setattr("harness.launch.runner.arrange", arrange)
    runner = make_runner(tmp_path, 3)
    records = runner.run(runner.sweep.trials())
    assert next(records).trial.seed == 1
    with pytest.raises(StorageError):
        next(records)
