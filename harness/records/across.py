"""Computes what the results of a trial's ranks come to, for readers that need no single rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TypeVar

from harness.records.record import (
    AcrossRanks,
    Compiled,
    Interruption,
    RankResult,
    RankResults,
    Saves,
    Telemetry,
    TelemetryAcross,
)

T = TypeVar("T")
R = TypeVar("R")
N = TypeVar("N", int, float)


def in_memory_ranks(results: Sequence[RankResult]) -> RankResults:
    """Return the ranks of results that are in memory."""
    return RankResults(lambda: results, across_ranks(results))


def across_ranks(results: Sequence[RankResult]) -> AcrossRanks:
    """Return what the results of ranks come to, in the order of the ranks."""
    hosts = Counter(result.host for result in results)
    interruptions: Sequence[Interruption] = ()
    refused_checkpoints: Sequence[str] = ()
    saves: Saves | None = None
    if results and results[0].rank == 0:
        interruptions = results[0].interruptions
        refused_checkpoints = results[0].refused_checkpoints
        saves = results[0].saves
    # Each of these is None unless it is known of every rank: the unknown one might be the largest.
    sizes = _of_every(results, lambda result: training_bytes(result.memory))
    scales = [result.loss_scale for result in results if result.loss_scale is not None]
    warnings: dict[str, None] = {}  # an ordered set: those of several ranks are mostly the same
    for result in results:
        if result.determinism is not None:
            warnings.update(dict.fromkeys(result.determinism.warnings))
    return AcrossRanks(
        count=len(results),
        nodes=len(hosts),
        ranks_per_node=max(hosts.values(), default=0),
        memory=_largest([result.memory for result in results]),
        training_bytes=max(sizes or (), default=None),
        compiled=_compiled(results),
        loss_scale=scales[0] if scales else None,
        may_vary=tuple(warnings),
        interruptions=tuple(interruptions),
        refused_checkpoints=tuple(refused_checkpoints),
        saves=saves,
        telemetry=_telemetry(results),
    )


def training_bytes(memory: Mapping[str, int]) -> int | None:
    """Return the bytes that training took, of what `PeakMemory.read` returned; None if unknown.

    On a GPU that is the peak of what torch allocated, elsewhere the growth of the resident size.
    """
    if "allocated" in memory:
        return memory["allocated"]
    if "resident" not in memory or "resident_before" not in memory:
        return None
    return memory["resident"] - memory["resident_before"]


def _of_every(ranks: Sequence[R], read: Callable[[R], T | None]) -> list[T] | None:
    """Return what `read` returns for each rank, None if that is None for any of them."""
    values = []
    for rank in ranks:
        value = read(rank)
        if value is None:
            return None
        values.append(value)
    return values


def _largest(values: Sequence[Mapping[str, N]]) -> dict[str, N]:
    """Return the largest value of each name in any of some mappings."""
    largest: dict[str, N] = {}
    for mapping in values:
        for name, value in mapping.items():
            largest[name] = max(largest.get(name, value), value)
    return largest


def _compiled(results: Sequence[RankResult]) -> Compiled | None:
    """Return each number of torch.compile from the rank that had most of it, None for eager.

    Ranks compile by themselves, and only some may meet a graph break.
    """
    ranks = [result.compiled for result in results if result.compiled is not None]
    if not ranks:
        return None
    most_broken = max(ranks, key=lambda rank: sum(rank.graph_breaks.values()))
    return Compiled(
        graphs=max(rank.graphs for rank in ranks),
        graph_breaks=most_broken.graph_breaks,
        recompiles=max(rank.recompiles for rank in ranks),
        seconds=max(rank.seconds for rank in ranks),
        cache_hits=max(rank.cache_hits for rank in ranks),
        cache_misses=max(rank.cache_misses for rank in ranks),
    )


def _telemetry(results: Sequence[RankResult]) -> TelemetryAcross | None:
    """Return the telemetry of all ranks, None unless every rank has some."""
    ranks = _of_every(results, lambda result: result.telemetry)
    if not ranks:
        return None
    throttled = _of_every(ranks, lambda rank: rank.throttled)
    processes = _of_every(ranks, lambda rank: rank.foreign_processes)
    joules = _of_every(ranks, _joules_per_step)
    readings = [_mean_readings(rank) for rank in ranks]
    shares = [rank.shares for rank in ranks]
    most_processes = None if processes is None else max(map(len, processes))
    return TelemetryAcross(
        readings=_means(readings),
        shares=_means(shares),
        throttled=_largest(throttled or []),
        foreign_processes=most_processes,
        joules_per_step=None if joules is None else sum(joules),
        sm_clock_range=_sm_clock_range(ranks),
    )


def _sm_clock_range(ranks: Sequence[Telemetry]) -> tuple[float, float] | None:
    """Return the lowest and the highest clock of the rank where they are furthest apart."""
    import numpy as np

    ranges = []
    for rank in ranks:
        series = rank.readings.get("gpu_sm_clock_hz")
        clocks = np.array([]) if series is None else series.unpack()
        clocks = clocks[np.isfinite(clocks)]
        if clocks.size:
            ranges.append((float(clocks.min()), float(clocks.max())))
    return max(ranges, key=lambda bounds: bounds[1] - bounds[0], default=None)


def _mean_readings(rank: Telemetry) -> dict[str, float]:
    """Return the mean of each reading over the samples that could be read; the others are NaN."""
    import numpy as np

    means = {}
    for name, series in rank.readings.items():
        values = series.unpack()
        if not np.isnan(values).all():
            means[name] = float(np.nanmean(values, dtype=np.float64))
    return means


def _means(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean over ranks of each number that every rank has."""
    means = {}
    for name in ranks[0]:
        if all(name in rank for rank in ranks):
            means[name] = fmean(rank[name] for rank in ranks)
    return means


def _joules_per_step(telemetry: Telemetry) -> float | None:
    """Return the energy of a step, None where there is no counter."""
    if telemetry.joules is None:
        return None
    return telemetry.joules / telemetry.steps
