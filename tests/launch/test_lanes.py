"""Which trials run side by side, where, in which order, and what company that is."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from harness.core.topology import Topology
from harness.launch import lanes
from harness.launch.lanes import (
    Group,
    JobRoom,
    MachineRoom,
    Occupancy,
    lane_count,
    side_by_side,
)
from harness.records.company import Company, Lane
from harness.spec.axes import Axes
from harness.spec.cell import Cell, Trial
from harness.spec.cluster import Parallel
from tests.factories import make_cell

CELLS = [make_cell(batch_size=size) for size in (16, 32, 64)]
DDP = make_cell(strategy="ddp", world_size=2)
SMALL = MachineRoom(ranks=4, gpus=0, cores=[[0, 4], [1, 5], [2, 6], [3, 7]])


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
    assert room.capacity(Axes(batch_size=64, **axes)) == trials  # type: ignore[arg-type]
    assert lane_count("auto", trials) == max(1, trials)
    assert lane_count(2, trials) == max(1, min(2, trials))


def test_lanes_share_no_core_and_no_physical_core() -> None:
    """Cores 0 and 4 are threads of one physical core."""
    two = MachineRoom(ranks=4, gpus=5, cores=SMALL.cores).lanes(2)
    assert [lane.cores for lane in two] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert [lane.gpus for lane in two] == [(0, 1), (2, 3)]


def test_without_parallel_trials_stay_as_they_are() -> None:
    trials = trials_of(*CELLS, DDP, seeds=3)
    arrange = side_by_side(SMALL, 1, trials)
    assert arrange(trials) == [Group(lanes=[Lane()], trials=trials)]


@pytest.mark.parametrize("parallel", ["auto", 2])
def test_trials_of_other_sizes_are_groups_of_their_own(parallel: Parallel) -> None:
    trials = trials_of(*CELLS, DDP, make_cell(strategy="ddp", world_size=4), seeds=3)
    groups = side_by_side(SMALL, parallel, trials)(trials)
    sizes = [{trial.cell.axes.world_size for trial in group.trials} for group in groups]
    if parallel == "auto":
        assert [len(group.lanes) for group in groups] == [1, 2, 4]
        assert sizes == [{4}, {2}, {1}]
    else:
        assert [len(group.lanes) for group in groups] == [1, 2]
        assert sizes == [{4}, {1, 2}]
    everywhere = [trial for group in groups for trial in group.trials]
    assert sorted(map(repr, everywhere)) == sorted(map(repr, trials))


def test_the_last_trial_of_many_has_the_lane_that_it_would_have_had_among_them() -> None:
    trials = trials_of(*CELLS, seeds=3)
    (group,) = side_by_side(SMALL, "auto", trials)(trials[-1:])
    assert len(group.lanes) == 4
    (group,) = side_by_side(SMALL, "auto", trials[-1:])(trials[-1:])
    assert group.lanes == [Lane()]


def test_each_cell_is_beside_each_other_and_itself_about_as_often() -> None:
    """And trials of a block stay within twice as many blocks as there are lanes."""
    trials = trials_of(*CELLS, seeds=400)
    (group,) = side_by_side(JobRoom(ranks_per_node=2), "auto", trials)(trials)
    for place, trial in enumerate(group.trials):
        assert place // (4 * len(CELLS)) == trial.seed // 4
    pairs = [(trial.cell.id, following.cell.id) for trial, following in pairwise(group.trials)]
    expected = len(pairs) / len(CELLS) ** 2
    for count in Counter(pairs).values():
        assert count == pytest.approx(expected, rel=0.3)
    assert side_by_side(JobRoom(ranks_per_node=2), "auto", trials)(trials)[0] == group


def test_threads_of_a_physical_core_are_neighbors(tmp_path: Path) -> None:
    for core in range(8):
        folder = tmp_path / f"devices/system/cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("0\n")
        (folder / "thread_siblings_list").write_text(f"{core % 4},{core % 4 + 4}\n")
    assert lanes.physical_cores(range(8), Topology(tmp_path)) == SMALL.cores
    assert lanes.physical_cores([1, 0], Topology(tmp_path / "none")) == [[0], [1]]


class TestCompany:
    LANE = Lane(number=0, count=3, cores=(0,))

    def company(self, start: float, end: float) -> Company:
        """Return the company of trial `a` beside `b` from 0 to 50, `c` from 20 to 100, then `b` again."""
        occupancy = Occupancy()
        occupancy.enter("a", start)
        occupancy.enter("b", 0)
        occupancy.enter("c", 20)
        occupancy.leave("b", 50)
        occupancy.leave("c", 100)
        occupancy.enter("b", 90)
        assert occupancy.running == 2
        company = occupancy.company("a", self.LANE, start, end)
        assert company is not None
        return company

    def test_says_for_how_long_each_trial_ran_beside_it_and_how_long_all_lanes_were_full(
        self,
    ) -> None:
        company = self.company(0, 100)
        assert company.beside == {"b": pytest.approx(0.6), "c": pytest.approx(0.8)}
        assert company.full == pytest.approx(0.4)
        assert company.had_idle_lanes
        assert company.description == "3 side by side, with empty lanes"

    def test_of_a_trial_that_was_never_short_of_it(self) -> None:
        company = self.company(20, 50)
        assert (company.beside, company.full) == ({"b": 1.0, "c": 1.0}, 1.0)
        assert company.description == "3 side by side"

    def test_of_a_trial_alone_is_none(self) -> None:
        assert Occupancy().company("a", Lane(), 0, 1) is None


def test_more_lanes_than_two_share_no_physical_core_as_long_as_there_are_enough() -> None:
    assert [lane.cores for lane in SMALL.lanes(3)] == [(0, 4), (1, 5), (2, 6)]
    six = MachineRoom(ranks=12, gpus=0, cores=[[core, core + 6] for core in range(6)])
    assert [len(lane.cores) for lane in six.lanes(4)] == [3] * 4, "as many as they have room for"
    hybrid = MachineRoom(ranks=6, gpus=0, cores=[[0, 1], [2, 3], [4], [5]])
    assert [len(lane.cores) for lane in hybrid.lanes(2)] == [3, 3]
    assert [lane.cores for lane in SMALL.lanes(8)] == [(n,) for n in (0, 4, 1, 5, 2, 6, 3, 7)]
