"""Which trials run side by side, and what an attempt leaves for the one after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import StorageError
from harness.core.paths import SweepFolder
from harness.launch import runner as runners
from harness.launch.interrupt import StopRequest
from harness.launch.runner import Life, Runner, TrialListener, arrange, make_lanes
from harness.launch.sweep import plan
from harness.launch.torchrun import Torchrun
from harness.records.assignment import Lane
from harness.sweep.cell import Cell, Trial
from harness.sweep.cluster import Parallel, Profile
from tests.factories import make_cell, make_record, write_trial
from tests.support.sweeps import load


def make_runner(folder: Path, seeds: int) -> Runner:
    """Return the runner of a sweep of one cell with so many seeds."""
    return Runner(
        sweep=load(folder, seeds=list(range(seeds))),
        profile=Profile(),
        folder=SweepFolder(folder / "results" / "runs" / "sweep"),
        launcher=Torchrun(environment={}).start,
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
    def two_lanes(trials: Sequence[Trial], profile: Profile) -> list[Any]:
        return [([Lane(number=number, count=2) for number in range(2)], trials)]

    def live(self: Runner, trial: Trial, *_: object, **options: bool) -> Life:
        yield
        if trial.seed == 0:
            raise StorageError("rank0.log: No space left on device")
        while not self.stop.reason():
            yield
        return make_record(trial.cell, seed=trial.seed, status="interrupted")

    monkeypatch.setattr(Runner, "_run", live)
    monkeypatch.setattr(runners, "arrange", two_lanes)
    runner = make_runner(tmp_path, 3)
    records = runner.run(runner.sweep.trials())
    assert next(records).trial.seed == 1
    with pytest.raises(StorageError):
        next(records)


# Lanes

CELLS = [make_cell(batch_size=size) for size in (16, 32, 64)]
DDP = make_cell(strategy="ddp", world_size=2)
CORES = [0, 4, 1, 5, 2, 6, 3, 7]


def trials_of(*cells: Cell, seeds: int) -> list[Trial]:
    """Return a block of trials for each seed."""
    return [Trial(cell=cell, seed=seed) for seed in range(seeds) for cell in cells]


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize(
    ("gpus", "axes", "trials"),
    [
        (0, {}, 4),  # the profile's slots
        (0, {"num_threads": 2, "num_workers": 1}, 2),  # cores for loader workers too
        (0, {"strategy": "ddp", "world_size": 4, "num_threads": 4}, 1),  # more than there is: alone
        (8, {"num_threads": 4, "num_workers": 3}, 4),
        (8, {"strategy": "ddp", "world_size": 2}, 2),
        (3, {}, 3),  # fewer GPUs than slots
    ],
)
def test_a_machine_holds_trials_whose_cores_or_gpus_are_disjoint(
    gpus: int, axes: dict[str, Any], trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Profile, "gpus", gpus)
    (trial,) = trials_of(make_cell(**axes), seeds=1)
    ((lanes, _),) = arrange([trial], Profile(parallel="auto"))
    assert len(lanes) == trials
    ((lanes, _),) = arrange([trial], Profile(parallel=2))
    assert len(lanes) == min(2, trials)


def test_lanes_share_no_core_and_no_physical_core_as_long_as_there_are_enough() -> None:
    """Cores 0 and 4 are threads of one physical core."""
    two = make_lanes(2, CORES, range(5))
    assert [lane.cores for lane in two] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert [lane.gpus for lane in two] == [(0, 1), (2, 3)]
    assert [lane.cores for lane in make_lanes(3, CORES, [])] == [(0, 4), (1, 5), (2, 6)]
    assert [len(lane.cores) for lane in make_lanes(4, range(12), [])] == [3] * 4
    assert [lane.cores for lane in make_lanes(8, CORES, [])] == [(core,) for core in CORES]


def test_without_parallel_trials_stay_as_they_are() -> None:
    trials = trials_of(*CELLS, DDP, seeds=3)
    assert arrange(trials, Profile()) == [([Lane()], trials)]


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four slots, and four physical cores of two threads each."""
    monkeypatch.setattr(runners, "available_slots", lambda profile: (4, "four"))
    monkeypatch.setattr(runners, "neighboring_cores", lambda cores: CORES)


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize(
    ("parallel", "expected"),
    [("auto", [(1, {4}), (2, {2}), (4, {1})]), (2, [(1, {4}), (2, {1, 2})])],
)
def test_trials_of_other_sizes_are_groups_of_their_own(
    parallel: Parallel, expected: list[tuple[int, set[int]]]
) -> None:
    """The last trial of a group has alone the lane that it would have had among others."""
    trials = trials_of(*CELLS, DDP, make_cell(strategy="ddp", world_size=4), seeds=3)
    profile = Profile(device="cpu", parallel=parallel)
    found = []
    everywhere: list[Trial] = []
    for lanes, group in arrange(trials, profile):
        found.append((len(lanes), {trial.cell.axes.world_size for trial in group}))
        everywhere += group
        assert arrange(group[-1:], profile) == [(lanes, group[-1:])]
    assert found == expected
    assert sorted(map(repr, everywhere)) == sorted(map(repr, trials))


def test_threads_of_a_physical_core_are_neighbors(tmp_path: Path) -> None:
    for core in range(8):
        folder = tmp_path / f"devices/system/cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("0\n")
        (folder / "thread_siblings_list").write_text(f"{core % 4},{core % 4 + 4}\n")
    assert runners.neighboring_cores(range(8), tmp_path) == CORES
    assert runners.neighboring_cores([1, 0], tmp_path / "none") == [0, 1]
