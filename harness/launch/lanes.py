"""Decides which trials run side by side: the lanes of a machine.

Trials that run at the same time slow each other down, so what counts is that all trials of a comparison
have as many lanes beside them. Each lane has its own CPU cores and GPUs, and all lanes have the same size,
however many trials are left for them. As soon as a lane is free, the next trial begins in it. Trials that
need another number of lanes wait until those have ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.cores import SYSTEM, core_position, usable_cores
from harness.records.assignment import Lane
from harness.sweep.axes import Axes
from harness.sweep.cell import Trial
from harness.sweep.cluster import Parallel, Profile, available_slots


@dataclass(frozen=True, kw_only=True)
class Group:
    """Trials that run in the same lanes, in the order in which they begin."""

    lanes: Sequence[Lane]
    trials: Sequence[Trial]


@dataclass(frozen=True, kw_only=True)
class MachineRoom:
    """This machine, whose lanes are bound to cores and GPUs."""

    ranks: int  # that it holds
    gpus: int  # that a process sees
    cores: Sequence[int]  # threads of a physical core are neighbors

    def lane_count(self, axes: Axes, parallel: Parallel) -> int:
        """Return how many trials run at a time: `parallel`, or as many as have GPUs or cores of their own."""
        devices, needed = self.gpus, axes.world_size
        if not self.gpus:
            devices = len(self.cores)
            needed *= axes.num_threads + axes.num_workers
        capacity = min(self.ranks // axes.world_size, devices // needed)
        if parallel != "auto":
            capacity = min(parallel, capacity)
        return max(1, capacity)

    def lanes(self, count: int) -> list[Lane]:
        """Return lanes with equal shares of cores and GPUs."""
        if count == 1:
            return [Lane()]
        lanes = []
        for number in range(count):
            cores = tuple(sorted(_share(self.cores, number, count)))
            gpus = tuple(_share(range(self.gpus), number, count))
            lanes.append(Lane(number=number, count=count, cores=cores, gpus=gpus))
        return lanes


def arrange(trials: Sequence[Trial], profile: Profile) -> list[Group]:
    """Return trials in groups by the number of their lanes, the fewest lanes first."""
    if profile.parallel == 1:  # also under Slurm, where this is not the machine of the ranks
        return [Group(lanes=[Lane()], trials=trials)]
    room = MachineRoom(
        ranks=available_slots(profile)[0],
        gpus=profile.gpus,
        cores=neighboring_cores(usable_cores()),
    )
    by_count: dict[int, list[Trial]] = {}
    for trial in trials:
        count = room.lane_count(trial.cell.axes, profile.parallel)
        by_count.setdefault(count, []).append(trial)
    groups = []
    for count, trials_of_group in sorted(by_count.items()):
        groups.append(Group(lanes=room.lanes(count), trials=trials_of_group))
    return groups


def _share(items: Sequence[int], number: int, count: int) -> Sequence[int]:
    """Return the share of one of `count` lanes; what does not divide is left over."""
    size = len(items) // count
    return items[number * size : (number + 1) * size]


def neighboring_cores(cores: Iterable[int], system: Path = SYSTEM) -> list[int]:
    """Return cores in an order in which the threads of a physical core are neighbors.

    Linux often numbers the second threads of all cores after the first ones. Lanes that share a
    physical core would take its caches and units from each other. Where Linux does not say, the order is
    that of their numbers.
    """
    cores = sorted(cores)
    try:
        return sorted(cores, key=lambda core: core_position(core, system))
    except OSError:
        return cores
