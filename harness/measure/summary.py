"""Computes a trial's figures from the results of its ranks; pure functions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.measure.steady import find_steady
from harness.records.record import (
    Rank0Report,
    RankResult,
    SlowestRank,
    Summary,
)
from harness.records.series import Numbers, Series, mean_over_ranks
from harness.spec.cell import ThroughputUnit

MIN_WINDOW_STEPS = 2  # fewer steps are no measurement
MAX_NODES = 64  # of which a summary has the time of a step, so that it stays small


@dataclass(frozen=True)
class Window:
    """The steps that are measured."""

    mask: NDArray[np.bool_]  # True for the steps in the window, shape (steps,)
    settled: bool | None  # whether all attempts became steady; None if they were too short to tell


def summarize(
    ranks: Sequence[RankResult],
    rank0: Rank0Report,
    batch_size: float,
    warmup: int,
    unit: ThroughputUnit = "samples/s",
) -> Summary:
    """Return the figures of a trial.

    - Throughput is the window's samples divided by the time of the rank that took longest.
    - A step takes as long as at its slowest rank.
    - The share of a phase is of the time of all ranks together.

    `batch_size` counts the samples of a global batch, or is 1 for throughput in steps/s; the first
    `warmup` steps are never in the window. What could not be measured is None.
    """
    step_seconds = np.stack([unpack(result.step_seconds) for result in ranks])  # (ranks, steps)
    window = measured_window(ranks, warmup)
    window_steps = int(window.mask.sum())
    final_loss = float(mean_loss(ranks)[-1:].mean()) if step_seconds.shape[1] else None
    if final_loss is not None and math.isnan(final_loss):  # a script that has not reported it
        final_loss = None
    best, final = rank0.best_evaluation, rank0.final_evaluation
    summary = Summary(
        throughput=None,
        window_start=None,
        window_steps=window_steps,
        settled=window.settled,
        step_p50=None,
        step_p90=None,
        step_p99=None,
        shares={},
        slowest=None,
        throughput_unit=unit,
        samples_per_step=reported_samples(ranks),
        final_loss=final_loss,
        final_metric=None if final is None else final.metrics[rank0.target.name],
        best_metric=None if best is None else best.metrics[rank0.target.name],
    )
    if window_steps < MIN_WINDOW_STEPS:
        return summary
    return _with_window(summary, ranks, step_seconds, window.mask, batch_size)


def _with_window(
    summary: Summary,
    ranks: Sequence[RankResult],
    step_seconds: Numbers,
    mask: NDArray[np.bool_],
    batch_size: float,
) -> Summary:
    """Return a summary with the figures of the steps in `mask`.

    `step_seconds` has the shape (ranks, steps).
    """
    in_window = step_seconds[:, mask]
    rank_seconds = in_window.sum(axis=1)
    p50, p90, p99 = np.percentile(in_window.max(axis=0), (50, 90, 99)).tolist()
    phases = {name: phase_seconds(ranks, name, mask) for name in ranks[0].step_phases}
    shares = {name: float(phase.sum() / rank_seconds.sum()) for name, phase in phases.items()}
    return replace(
        summary,
        throughput=float(mask.sum() * batch_size / rank_seconds.max()),
        window_start=int(mask.argmax()),
        step_p50=p50,
        step_p90=p90,
        step_p99=p99,
        shares=shares,
        slowest=_slowest_rank(ranks, rank_seconds, phases.get("communication")),
        node_seconds=_node_seconds(
            ranks, rank_seconds, phases.get("communication"), int(mask.sum())
        ),
    )


def reported_samples(ranks: Sequence[RankResult]) -> float | None:
    """Return the samples of a step of all ranks together, None where no script has reported any."""
    samples = [rank.samples_per_step for rank in ranks if rank.samples_per_step is not None]
    return sum(samples) if samples else None


def slowest_rank_seconds(ranks: Sequence[RankResult], mask: NDArray[np.bool_]) -> Numbers:
    """Return the seconds of the steps in `mask` of the rank that took longest, shape (steps,).

    Throughput is counted over that rank's time.
    """
    steps = np.stack([unpack(rank.step_seconds) for rank in ranks]).astype(np.float64)
    slowest_rank = steps[:, mask].sum(axis=1).argmax()
    seconds: Numbers = steps[slowest_rank, mask]
    return seconds


def measured_window(ranks: Sequence[RankResult], warmup: int) -> Window:
    """Return the window of a trial, given the results of its ranks.

    A step takes as long as at its slowest rank. Steps that were fingerprinted, or that a loader has
    fetched for in an untimed pause, are never in the window, and whether the others are does not depend
    on them.
    """
    seconds = np.stack([unpack(result.step_seconds) for result in ranks]).max(axis=0)
    resumed_at = [interruption.step for interruption in ranks[0].interruptions]
    is_timed = np.ones(len(seconds), dtype=bool)
    untimed = [*ranks[0].fingerprinted_steps, *ranks[0].refilled_steps]
    is_timed[[step for step in untimed if step < len(seconds)]] = False
    timed_before = [int(is_timed[:step].sum()) for step in resumed_at]
    window = find_window(seconds[is_timed], warmup, timed_before)
    mask = np.zeros(len(seconds), dtype=bool)
    mask[is_timed] = window.mask
    return Window(mask, window.settled)


def find_window(seconds: Numbers, warmup: int, resumed_at: Sequence[int]) -> Window:
    """Return the window of steps of the given durations, shape (steps,).

    It has the steady part of every attempt; attempts after the first begin at the steps
    `resumed_at`. The first `warmup` steps of an attempt are never in it. An attempt that is too
    short to decide on may be warm-up throughout, and counts only if all attempts are that short.
    """
    attempts = list(itertools.pairwise([0, *resumed_at, len(seconds)]))
    steady_parts = [
        find_steady(seconds[start:end], min(warmup, end - start)) for start, end in attempts
    ]
    decided = [steady.settled for steady in steady_parts if steady.settled is not None]
    mask = np.zeros(len(seconds), dtype=bool)
    for (start, end), steady in zip(attempts, steady_parts, strict=True):
        mask[start + steady.first_step : end] = steady.settled is not None or not decided
    return Window(mask, all(decided) if decided else None)


def phase_seconds(ranks: Sequence[RankResult], name: str, mask: NDArray[np.bool_]) -> Numbers:
    """Return the seconds that each rank spent in a phase during the steps in `mask`, shape
    (ranks,).
    """
    totals = []
    for result in ranks:
        seconds = unpack(result.step_phases.get(name))
        totals.append(seconds[mask].sum(dtype=np.float64))
    return np.asarray(totals)


def mean_loss(ranks: Sequence[RankResult]) -> Numbers:
    """Return the loss of each step, the mean over ranks, float64, shape (steps,).

    The mean needs no weights because the ranks' parts of a global batch are equally large.
    """
    losses: Numbers = np.stack([unpack(result.loss).astype(np.float64) for result in ranks])
    return mean_over_ranks(losses)


def unpack(series: Series | None) -> Numbers:
    """Return the numbers of a series, an empty array for None."""
    if series is None:
        return np.empty(0)
    return series.unpack()


def _slowest_rank(
    ranks: Sequence[RankResult], rank_seconds: Numbers, communication: Numbers | None
) -> SlowestRank | None:
    """Return the rank that the others waited for, None for a single rank or unknown communication.

    Ranks wait for each other while they communicate, so all of them take equally long. The slowest
    is the one that spends the most time on anything else. `rank_seconds` and `communication` have
    the shape (ranks,).
    """
    if communication is None or len(ranks) < 2:
        return None
    busy = rank_seconds - communication
    index = int(busy.argmax())
    mean_of_other_ranks = np.delete(busy, index).mean()
    skew = float((busy[index] - mean_of_other_ranks) / rank_seconds.max())
    return SlowestRank(rank=ranks[index].rank, host=ranks[index].host, skew=skew)


def _node_seconds(
    ranks: Sequence[RankResult], rank_seconds: Numbers, communication: Numbers | None, steps: int
) -> dict[str, float]:
    """Return how long a step takes the slowest rank of each node, without its communication.

    `rank_seconds` and `communication` are of `steps` steps, shape (ranks,). Of more than MAX_NODES
    nodes the slowest are returned, none where ranks communicate and it is not known how long.
    """
    if communication is None and len(ranks) > 1:
        return {}
    busy = rank_seconds if communication is None else rank_seconds - communication
    nodes: dict[str, float] = {}
    for rank, seconds in zip(ranks, (busy / steps).tolist(), strict=True):
        if seconds > 0:
            nodes[rank.host] = max(seconds, nodes.get(rank.host, 0.0))
    slowest_first = sorted(nodes.items(), key=lambda item: -item[1])
    return dict(slowest_first[:MAX_NODES])
