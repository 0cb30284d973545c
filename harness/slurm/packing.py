"""Which trials share a job: pure, from blocks and what their trials are estimated to take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.spec.cell import Trial

MOST_JOBS = 1000  # of one array: Slurm's MaxArraySize is 1001 unless set
FILLING = 0.9  # share of the time limit that estimates may fill


@dataclass(frozen=True, kw_only=True)
class Load:
    """One job's trials, block after block, in the order in which they run."""

    trials: Sequence[Trial]
    seconds: float | None  # estimated; None where a trial's time is unknown


@dataclass(frozen=True, kw_only=True)
class Array:
    """Jobs that ask for the same nodes: one call of sbatch."""

    nodes: int
    ranks_per_node: int
    loads: Sequence[Load]


@dataclass(frozen=True, kw_only=True)
class Packing:
    arrays: Sequence[Array]
    remarks: Sequence[str]  # what the user should know: blocks that had to be split


def pack(
    blocks: Sequence[Sequence[Trial]],
    estimates: Mapping[str, float],
    *,
    ranks_per_node: int,
    limit: float,
    parallel: int,
) -> Packing:
    """A block stays whole, in one job on nodes for its largest trial, unless it takes longer than `limit` seconds.

    `estimates` are seconds by cell id. Jobs are as many as may run at a time, `parallel`, or more where they would
    take too long; blocks whose time is unknown have a job each.
    """
    remarks: list[str] = []
    by_shape: dict[tuple[int, int], list[Load]] = {}
    for block in blocks:
        for load in _cut(block, estimates, limit * FILLING, remarks):
            ranks = max(trial.cell.axes.world_size for trial in load.trials)
            shape = (-(-ranks // ranks_per_node), min(ranks, ranks_per_node))
            by_shape.setdefault(shape, []).append(load)
    arrays = [
        Array(nodes=nodes, ranks_per_node=ranks, loads=jobs)
        for (nodes, ranks), loads in by_shape.items()
        for jobs in _batches(_deal(loads, limit * FILLING, parallel))
    ]
    return Packing(arrays=arrays, remarks=remarks)


def _cut(
    block: Sequence[Trial], estimates: Mapping[str, float], limit: float, remarks: list[str]
) -> Iterator[Load]:
    """The block, or the parts of it that each fit the limit; a trial that is longer by itself is a part."""
    seconds = [estimates.get(trial.cell.id) for trial in block]
    known = [one for one in seconds if one is not None]
    if len(known) < len(block) or sum(known) <= limit:
        yield Load(trials=block, seconds=sum(known) if len(known) == len(block) else None)
        return
    parts: list[list[int]] = [[]]
    for number, one in enumerate(known):
        if parts[-1] and sum(known[other] for other in parts[-1]) + one > limit:
            parts.append([])
        parts[-1].append(number)
    if len(parts) > 1:
        which = f"block of seed {block[0].seed}, repeat {block[0].repeat}"
        remarks.append(
            f"{which}: about {sum(known):,.0f} s, and a job has {limit:,.0f} s: split into {len(parts)} jobs,"
            " whose trials compare less well"
        )
    for part in parts:
        yield Load(
            trials=[block[number] for number in part], seconds=sum(known[number] for number in part)
        )


def _deal(loads: Sequence[Load], limit: float, parallel: int) -> list[Load]:
    """Loads of known length put together into as many jobs as can run at a time, or more."""
    alone = [load for load in loads if load.seconds is None]
    jobs: list[list[Load]] = [[] for _ in range(parallel)]
    for load in (load for load in loads if load.seconds is not None):
        shortest = min(jobs, key=_total)
        if shortest and _total([*shortest, load]) > limit:
            jobs.append([load])
        else:
            shortest.append(load)
    together = [
        Load(trials=[trial for load in job for trial in load.trials], seconds=_total(job))
        for job in jobs
        if job
    ]
    return together + alone


def _total(loads: Sequence[Load]) -> float:
    return sum(load.seconds or 0.0 for load in loads)


def _batches(loads: Sequence[Load]) -> Iterator[Sequence[Load]]:
    for first in range(0, len(loads), MOST_JOBS):
        yield loads[first : first + MOST_JOBS]
