"""Which trials run side by side, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.launch import lanes
from harness.launch.lanes import Group, MachineRoom, arrange
from harness.records.assignment import Lane
from harness.sweep.axes import Axes
from harness.sweep.cell import Cell, Trial
from harness.sweep.cluster import Parallel, Profile
from tests.factories import make_cell

CELLS = [make_cell(batch_size=size) for size in (16, 32, 64)]
DDP = make_cell(strategy="ddp", world_size=2)
SMALL = MachineRoom(ranks=4, gpus=0, cores=[0, 4, 1, 5, 2, 6, 3, 7])


def trials_of(*cells: Cell, seeds: int) -> list[Trial]:
    """Return a block of trials for each seed."""
    return [Trial(cell=cell, seed=seed) for seed in range(seeds) for cell in cells]


@pytest.mark.parametrize(
    ("gpus", "axes", "trials"),
    [
        (0, {}, 4),  # the profile's slots
        (0, {"num_threads": 2, "num_workers": 1}, 2),  # cores for loader workers too
        (0, {"world_size": 4, "num_threads": 4}, 0),  # more than the machine has: alone
        (8, {"num_threads": 4, "num_workers": 3}, 4),
        (8, {"world_size": 2}, 2),
        (3, {}, 3),  # fewer GPUs than slots
    ],
)
def test_a_machine_holds_trials_whose_cores_or_gpus_are_disjoint(
    gpus: int, axes: dict[str, int], trials: int
) -> None:
    room = MachineRoom(ranks=4, gpus=gpus, cores=SMALL.cores)
    of_cell = Axes(batch_size=64, **axes)  # type: ignore[arg-type]
    assert room.lane_count(of_cell, "auto") == max(1, trials)
    assert room.lane_count(of_cell, 2) == max(1, min(2, trials))


def test_lanes_share_no_core_and_no_physical_core() -> None:
    """Cores 0 and 4 are threads of one physical core."""
    two = MachineRoom(ranks=4, gpus=5, cores=SMALL.cores).lanes(2)
    assert [lane.cores for lane in two] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert [lane.gpus for lane in two] == [(0, 1), (2, 3)]


def test_without_parallel_trials_stay_as_they_are() -> None:
    trials = trials_of(*CELLS, DDP, seeds=3)
    assert arrange(trials, Profile()) == [Group(lanes=[Lane()], trials=trials)]


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four slots, and four physical cores of two threads each."""
    monkeypatch.setattr(lanes, "available_slots", lambda profile: (4, "four"))
    monkeypatch.setattr(lanes, "neighboring_cores", lambda cores: SMALL.cores)


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize("parallel", ["auto", 2])
def test_trials_of_other_sizes_are_groups_of_their_own(parallel: Parallel) -> None:
    trials = trials_of(*CELLS, DDP, make_cell(strategy="ddp", world_size=4), seeds=3)
    groups = arrange(trials, Profile(device="cpu", parallel=parallel))
    sizes = [{trial.cell.axes.world_size for trial in group.trials} for group in groups]
    if parallel == "auto":
        assert [len(group.lanes) for group in groups] == [1, 2, 4]
        assert sizes == [{4}, {2}, {1}]
    else:
        assert [len(group.lanes) for group in groups] == [1, 2]
        assert sizes == [{4}, {1, 2}]
    everywhere = [trial for group in groups for trial in group.trials]
    assert sorted(map(repr, everywhere)) == sorted(map(repr, trials))


@pytest.mark.usefixtures("small_machine")
def test_the_last_trial_of_many_has_the_lane_that_it_would_have_had_among_them() -> None:
    trials = trials_of(*CELLS, seeds=3)
    (group,) = arrange(trials, Profile(device="cpu", parallel="auto"))
    assert (len(group.lanes), group.trials) == (4, trials)
    (alone,) = arrange(trials[-1:], Profile(device="cpu", parallel="auto"))
    assert alone.lanes == group.lanes


def test_threads_of_a_physical_core_are_neighbors(tmp_path: Path) -> None:
    for core in range(8):
        folder = tmp_path / f"devices/system/cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("0\n")
        (folder / "thread_siblings_list").write_text(f"{core % 4},{core % 4 + 4}\n")
    assert lanes.neighboring_cores(range(8), tmp_path) == SMALL.cores
    assert lanes.neighboring_cores([1, 0], tmp_path / "none") == [0, 1]


def test_more_lanes_than_two_share_no_physical_core_as_long_as_there_are_enough() -> None:
    assert [lane.cores for lane in SMALL.lanes(3)] == [(0, 4), (1, 5), (2, 6)]
    six = MachineRoom(ranks=12, gpus=0, cores=range(12))
    assert [len(lane.cores) for lane in six.lanes(4)] == [3] * 4, "as many as they have room for"
    assert [lane.cores for lane in SMALL.lanes(8)] == [(n,) for n in (0, 4, 1, 5, 2, 6, 3, 7)]
