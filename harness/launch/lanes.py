"""Decides which trials run side by side: the lanes of a machine, and the order of the trials in them.

Trials that run at the same time slow each other down, so what counts is that all trials of a
comparison have the same company:

- Each lane has its own CPU cores and GPUs. All lanes have the same size.
- As soon as a lane is free, the next trial begins in it, so that every lane has a trial as long as
  there are any. Trials that need another number of lanes wait until those have ended.
- Trials of twice as many blocks as there are lanes are shuffled. In that order each cell runs at
  the same time as any other about as often, and nearly as often as itself. These blocks take as long
  side by side as two do alone, so trials of a block still run close to each other.

Which trials did run at the same time is noted in an `Occupancy`.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.core.cores import usable_cores
from harness.core.errors import BadInput
from harness.core.topology import Topology
from harness.records.company import BLOCKS_PER_LANE, Company, Lane
from harness.spec.axes import Axes
from harness.spec.cell import Trial
from harness.spec.cluster import Parallel, Profile, available_slots


@dataclass(frozen=True, kw_only=True)
class Group:
    """Trials that run in the same lanes, in the order in which they begin."""

    lanes: Sequence[Lane]
    trials: Sequence[Trial]


# Returns the groups of some trials, which run one after the other.
Arrange = Callable[[Sequence[Trial]], Sequence[Group]]


@dataclass(frozen=True, kw_only=True)
class MachineRoom:
    """This machine, whose lanes are bound to cores and GPUs."""

    ranks: int  # that it holds
    gpus: int  # that a process sees
    cores: Sequence[Sequence[int]]  # the threads of each physical core

    @staticmethod
    def of(profile: Profile) -> MachineRoom:
        """Return this machine as a profile has it used."""
        return MachineRoom(
            ranks=available_slots(profile).ranks,
            gpus=profile.gpus,
            cores=physical_cores(usable_cores(), Topology()),
        )

    def capacity(self, axes: Axes) -> int:
        """Return how many trials it has GPUs for, or cores for their threads and loader workers."""
        devices, needed = self.gpus, axes.world_size
        if not self.gpus:
            devices = sum(map(len, self.cores))
            needed *= axes.num_threads + axes.num_workers
        return min(self.ranks // axes.world_size, devices // needed)

    def lanes(self, count: int) -> list[Lane]:
        """Return lanes with equal shares of cores and GPUs.

        Cores are whole physical ones where that takes none away. It would where they don't divide,
        or have different numbers of threads.
        """
        threads = [core for group in self.cores for core in group]
        size = len(self.cores) // count
        shares: list[Sequence[int]] = []
        for start in range(0, size * count, size or 1):
            shares.append([core for group in self.cores[start : start + size] for core in group])
        if {len(share) for share in shares} != {len(threads) // count}:
            shares = [_share(threads, number, count) for number in range(count)]
        lanes = []
        for number, share in enumerate(shares):
            lane_cores = tuple(sorted(share))
            lane_gpus = tuple(_share(range(self.gpus), number, count))
            lanes.append(Lane(number=number, count=count, cores=lane_cores, gpus=lane_gpus))
        return lanes


@dataclass(frozen=True, kw_only=True)
class JobRoom:
    """The first node of a Slurm job, on which Slurm itself binds the steps."""

    ranks_per_node: int

    def capacity(self, axes: Axes) -> int:
        """Return how many trials the job asked for."""
        return self.ranks_per_node // axes.world_size

    def lanes(self, count: int) -> list[Lane]:
        """Return lanes whose cores and GPUs are Slurm's to choose."""
        return [Lane(number=number, count=count) for number in range(count)]


def one_by_one(trials: Sequence[Trial]) -> list[Group]:
    """Return trials as they are, each with the machine for itself."""
    return [Group(lanes=[Lane()], trials=trials)]


def side_by_side(
    room: MachineRoom | JobRoom, parallel: Parallel, planned: Sequence[Trial]
) -> Arrange:
    """Return how trials are arranged where as many as `parallel` says may run at a time.

    `planned` are all that are ever to run there, or one repeat of them if repeats run one after
    the other. A trial that is left of them has as many lanes as the others had. No group has more
    lanes than there are planned trials for them.
    """
    if parallel == 1:
        return one_by_one

    def lanes_for(trial: Trial) -> int:
        """Return how many trials like this one may run at a time."""
        return lane_count(parallel, room.capacity(trial.cell.axes))

    trials_by_lanes = Counter(lanes_for(trial) for trial in planned)

    def arrange(pending: Sequence[Trial]) -> list[Group]:
        """Return pending trials in groups by the number of their lanes, the fewest lanes first."""
        by_count: dict[int, list[Trial]] = {}
        for trial in pending:
            lanes = lanes_for(trial)
            by_count.setdefault(min(lanes, trials_by_lanes[lanes]), []).append(trial)
        groups = []
        for count, trials in sorted(by_count.items()):
            if count == 1:
                groups += one_by_one(trials)
            else:
                groups.append(
                    Group(
                        lanes=room.lanes(count), trials=_shuffled(trials, BLOCKS_PER_LANE * count)
                    )
                )
        return groups

    return arrange


def lane_count(parallel: Parallel, capacity: int) -> int:
    """Return how many trials run at a time where there is room for `capacity`, at least one."""
    if parallel == "auto":
        return max(1, capacity)
    return max(1, min(parallel, capacity))


def _shuffled(trials: Sequence[Trial], block_count: int) -> list[Trial]:
    """Return trials with those of each `block_count` blocks in an order that is drawn, always the same
    one for the same blocks.
    """
    blocks: dict[tuple[int, int], list[Trial]] = {}
    for trial in trials:
        blocks.setdefault((trial.seed, trial.repeat), []).append(trial)
    keys = list(blocks)
    ordered: list[Trial] = []
    for start in range(0, len(keys), block_count):
        chunk = keys[start : start + block_count]
        drawn = [trial for key in chunk for trial in blocks[key]]
        random.Random(repr(chunk)).shuffle(drawn)
        ordered += drawn
    return ordered


def _share(items: Sequence[int], number: int, count: int) -> Sequence[int]:
    """Return the share of one of `count` lanes; what does not divide is left over."""
    size = len(items) // count
    return items[number * size : (number + 1) * size]


def physical_cores(cores: Iterable[int], topology: Topology) -> list[list[int]]:
    """Return the usable threads of each physical core; each is one where Linux does not say.

    Linux often numbers the second threads of all cores after the first ones. Lanes that share a
    physical core would take its caches and units from each other.
    """
    threads: dict[tuple[int, int], list[int]] = {}
    for core in sorted(cores):
        try:
            position = topology.socket(core), topology.physical_core(core)
        except BadInput:
            position = 0, core
        threads.setdefault(position, []).append(core)
    return [threads[position] for position in sorted(threads)]


# Which trials did run side by side


@dataclass
class _Stay:
    """The time for which the ranks of a trial ran, or a part of it, in seconds since the epoch."""

    trial: str
    start: float
    end: float = math.inf  # infinity: they still run


class Occupancy:
    """The trials that have run and run in the lanes of a machine."""

    def __init__(self) -> None:
        self._stays: list[_Stay] = []

    @property
    def running(self) -> int:
        """The number of trials whose ranks run."""
        return sum(stay.end == math.inf for stay in self._stays)

    def enter(self, trial: str, at: float) -> None:
        """Note that the ranks of a trial were started; forget those that no running trial has run with."""
        oldest = min((stay.start for stay in self._stays if stay.end == math.inf), default=at)
        self._stays = [stay for stay in self._stays if stay.end > oldest]
        self._stays.append(_Stay(trial, at))

    def leave(self, trial: str, at: float) -> None:
        """Note that the ranks of a trial have ended."""
        for stay in self._stays:
            if stay.trial == trial and stay.end == math.inf:
                stay.end = at

    def company(self, trial: str, lane: Lane, start: float, end: float) -> Company | None:
        """Return the company of a trial that ran from `start` to `end`, None for one that needs none."""
        if lane.count == 1:
            return None
        overlaps = []  # the parts of other trials' stays that fall between `start` and `end`
        for stay in self._stays:
            overlap_start = max(start, stay.start)
            overlap_end = min(end, stay.end)
            if stay.trial != trial and overlap_start < overlap_end:
                overlaps.append(_Stay(stay.trial, overlap_start, overlap_end))
        seconds = max(end - start, 1e-9)
        beside: dict[str, float] = {}
        for overlap in overlaps:
            share = (overlap.end - overlap.start) / seconds
            beside[overlap.trial] = min(1.0, beside.get(overlap.trial, 0.0) + share)
        full = _seconds_with(lane.count - 1, overlaps) / seconds
        return Company(lane=lane, beside=beside, full=min(1.0, full))


def _seconds_with(neighbors: int, overlaps: Sequence[_Stay]) -> float:
    """Return for how many seconds at least `neighbors` other trials ran at the same time."""
    moments = sorted({moment for overlap in overlaps for moment in (overlap.start, overlap.end)})
    seconds = 0.0
    for start, end in pairwise(moments):
        present = sum(overlap.start <= start and end <= overlap.end for overlap in overlaps)
        if present >= neighbors:
            seconds += end - start
    return seconds
