"""Decides which trials run side by side: the lanes of a machine.

Trials that run at the same time slow each other down, so what counts is that all trials of a comparison
have as many lanes beside them. Each lane has its own CPU cores and GPUs, and all lanes have the same size,
however many trials are left for them. As soon as a lane is free, the next trial begins in it. Trials that
need another number of lanes wait until those have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.cores import usable_cores
from harness.core.topology import SYSTEM, core_position
from harness.records.assignment import Lane
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
            ranks=available_slots(profile)[0],
            gpus=profile.gpus,
            cores=physical_cores(usable_cores()),
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
        if count == 1:
            return [Lane()]
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


def one_by_one(trials: Sequence[Trial]) -> list[Group]:
    """Return trials as they are, each with the machine for itself."""
    return [Group(lanes=[Lane()], trials=trials)]


def side_by_side(room: MachineRoom, parallel: Parallel) -> Arrange:
    """Return how trials are arranged where as many as `parallel` says may run at a time."""
    if parallel == 1:
        return one_by_one

    def arrange(pending: Sequence[Trial]) -> list[Group]:
        """Return pending trials in groups by the number of their lanes, the fewest lanes first."""
        by_count: dict[int, list[Trial]] = {}
        for trial in pending:
            count = lane_count(parallel, room.capacity(trial.cell.axes))
            by_count.setdefault(count, []).append(trial)
        groups = []
        for count, trials in sorted(by_count.items()):
            groups.append(Group(lanes=room.lanes(count), trials=trials))
        return groups

    return arrange


def lane_count(parallel: Parallel, capacity: int) -> int:
    """Return how many trials run at a time where there is room for `capacity`, at least one."""
    if parallel == "auto":
        return max(1, capacity)
    return max(1, min(parallel, capacity))


def _share(items: Sequence[int], number: int, count: int) -> Sequence[int]:
    """Return the share of one of `count` lanes; what does not divide is left over."""
    size = len(items) // count
    return items[number * size : (number + 1) * size]


def physical_cores(cores: Iterable[int], system: Path = SYSTEM) -> list[list[int]]:
    """Return the usable threads of each physical core; each is one where Linux does not say.

    Linux often numbers the second threads of all cores after the first ones. Lanes that share a
    physical core would take its caches and units from each other.
    """
    threads: dict[tuple[int, int], list[int]] = {}
    for core in sorted(cores):
        try:
            position = core_position(core, system)
        except OSError:
            position = 0, core
        threads.setdefault(position, []).append(core)
    return [threads[position] for position in sorted(threads)]
