"""A race leaves out trials that can't change which cell is the best, and decides from records alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.errors import BadInput
from harness.core.paths import Results, SweepFolder
from harness.launch import sweep as runner
from harness.launch.race import SweepRace
from harness.launch.runner import Life, Runner
from harness.records.files import write_record
from harness.records.record import Record
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep
from harness.spec.validity import ValidityRules
from tests.factories import make_record
from tests.support.races import SPEEDS, race_sweep, speed_record
from tests.support.running import RecordCollector

PROFILE = Profile(device="cpu", validity=ValidityRules(contention=None))


class FakeTrials:
    """Stands in for ranks: a trial takes no time, and some fail or are interrupted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[Trial] = []
        self.speeds: Mapping[int, float] = SPEEDS
        self.change: Callable[[Record], Record] = lambda record: record
        monkeypatch.setattr(Runner, "_run", lambda runner, *args, **keys: self.live(runner, *args))

    def live(self, runner: Runner, trial: Trial, *_: object) -> Life:
        yield
        self.ran.append(trial)
        record = self.change(speed_record(trial, self.speeds))
        write_record(runner.folder.trial_folder(trial.id).record_path, record)
        return record

    def run(
        self, sweep: Sweep, results: Path, redo: runner.Redo = "failed"
    ) -> tuple[list[Record], SweepFolder]:
        folder = Results(results).sweep_folder(sweep.name)
        records = runner.run(sweep, PROFILE, folder, RecordCollector(), redo=redo, fail_fast=False)
        return records, folder

    def count(self, batch_size: int) -> int:
        return sum(trial.cell.axes.batch_size == batch_size for trial in self.ran)


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> FakeTrials:
    return FakeTrials(monkeypatch)


def test_a_cell_leaves_and_the_others_run_on(tmp_path: Path, trials: FakeTrials) -> None:
    sweep = race_sweep(tmp_path)
    records, folder = trials.run(sweep, tmp_path)
    race = SweepRace.of_records(sweep, records)
    slow, *others = sweep.cells
    departure = race.departure(slow)
    assert departure is not None
    assert str(departure) == f"left after {departure.blocks} blocks"
    assert trials.count(16) == departure.blocks < 8
    assert [race.departure(cell) for cell in others] == [None, None]
    assert trials.count(64) == trials.count(256) == 8
    assert not race.is_decided
    # All of it follows from what is on the disk, and there is nothing left to run.
    assert runner.plan(sweep, folder, "failed").pending == []


def test_a_race_is_over_once_its_winner_is_certain(tmp_path: Path, trials: FakeTrials) -> None:
    sweep = race_sweep(tmp_path)
    trials.speeds = {16: 1000.0, 64: 5000.0, 256: 3000.0}
    records, _ = trials.run(sweep, tmp_path)
    race = SweepRace.of_records(sweep, records)
    assert race.is_decided
    (mlp,) = race.races.values()
    assert [cell.axes.batch_size for cell in mlp.cells_in] == [64]
    assert trials.count(64) == mlp.judged < 8
    last = sweep.blocks()[-1]
    reasons = {race.reason_to_skip(trial) for trial in last}
    assert f"the race was decided after {mlp.judged} blocks" in reasons


def test_without_a_race_every_trial_runs(tmp_path: Path, trials: FakeTrials) -> None:
    sweep = race_sweep(tmp_path, race=None)
    trials.run(sweep, tmp_path)
    assert len(trials.ran) == 24


def test_an_interrupted_race_goes_on_as_it_would_have(tmp_path: Path, trials: FakeTrials) -> None:
    sweep = race_sweep(tmp_path)
    trials.run(sweep, tmp_path / "whole")
    whole = [trial.id for trial in trials.ran]
    for ran_before in (7, 14):
        trials.ran.clear()

        def stop(record: Record, after: int = ran_before) -> Record:
            if len(trials.ran) > after:
                raise KeyboardInterrupt
            return record

        trials.change = stop
        with pytest.raises(KeyboardInterrupt):
            trials.run(sweep, tmp_path / str(ran_before))
        del trials.ran[-1]  # it left no record
        trials.change = lambda record: record
        trials.run(sweep, tmp_path / str(ran_before))
        assert [trial.id for trial in trials.ran] == whole


def test_a_cell_that_fails_leaves_until_it_was_repeated(tmp_path: Path, trials: FakeTrials) -> None:
    sweep = race_sweep(tmp_path)
    fast = sweep.cells[1]

    def fail(record: Record) -> Record:
        if record.trial.cell == fast and record.trial.repeat == 1:
            return make_record(fast, repeat=1, status="failed")
        return record

    trials.change = fail
    records, _ = trials.run(sweep, tmp_path)
    departure = SweepRace.of_records(sweep, records).departure(fast)
    assert departure is not None
    assert (departure.blocks, departure.cause) == (2, "a trial failed")
    assert trials.count(64) == 2
    trials.change = lambda record: record
    trials.run(sweep, tmp_path)
    records, _ = trials.run(sweep, tmp_path)
    assert SweepRace.of_records(sweep, records).departure(fast) is None
    assert trials.count(64) == 1 + 8


def test_a_block_is_judged_when_its_invalid_trials_have_run_again(
    tmp_path: Path, trials: FakeTrials
) -> None:
    sweep = race_sweep(tmp_path)
    slow = sweep.cells[0]
    trials.run(sweep, tmp_path / "undisturbed")
    blocks = trials.count(16)
    trials.ran.clear()

    def disturb(record: Record) -> Record:
        is_first = [trial.id for trial in trials.ran].count(record.trial.id) == 1
        if record.trial.cell == slow and record.trial.repeat == blocks - 1 and is_first:
            return replace(record, status="invalid", violations=("other programs took the cores",))
        return record

    trials.change = disturb
    records, _ = trials.run(sweep, tmp_path / "disturbed")
    departure = SweepRace.of_records(sweep, records).departure(slow)
    assert departure is not None
    assert departure.blocks == blocks
    assert trials.count(16) == blocks + 1, "the last one ran twice"


def test_force_does_not_decide_by_earlier_records(tmp_path: Path, trials: FakeTrials) -> None:
    sweep = race_sweep(tmp_path)
    trials.run(sweep, tmp_path)
    first = len(trials.ran)
    trials.run(sweep, tmp_path, redo="all")
    assert len(trials.ran) == 2 * first


def test_a_goal_comes_before_speed(tmp_path: Path) -> None:
    sweep = race_sweep(tmp_path, seeds=8, repeats=1, race={"reach": 0.9})
    records = []
    for trial in sweep.trials():
        record = speed_record(trial)
        assert record.summary is not None
        metric = 0.5 if trial.cell.axes.batch_size == 64 else 0.95
        metric += trial.seed / 1000
        records.append(replace(record, summary=replace(record.summary, final_metric=metric)))
    race = SweepRace.of_records(sweep, records)
    departures = [race.departure(cell) for cell in sweep.cells]
    assert [departure and departure.cause for departure in departures] == [
        "another cell is certainly faster",
        "it does not reach 0.9",
        None,
    ]
    assert race.is_decided


def test_a_race_of_a_part_of_the_sweep_is_refused(tmp_path: Path, trials: FakeTrials) -> None:
    from harness.spec.selected import select

    sweep = select(race_sweep(tmp_path), "batch_size=16", ())
    with pytest.raises(BadInput, match=r"\.yaml: race: found with --only or --cell"):
        trials.run(sweep, tmp_path)
    assert trials.ran == []


def test_too_few_blocks_to_decide_anything_are_refused(tmp_path: Path) -> None:
    SweepRace(race_sweep(tmp_path, repeats=3)).refuse_too_few()
    with pytest.raises(BadInput, match="race: found 2 blocks of mlp; allowed: 3 or more"):
        SweepRace(race_sweep(tmp_path, repeats=2)).refuse_too_few()
    with pytest.raises(BadInput, match=r"race: found 2 seeds of mlp; allowed: 3 or more"):
        SweepRace(race_sweep(tmp_path, seeds=2, race={"reach": 0.9})).refuse_too_few()
