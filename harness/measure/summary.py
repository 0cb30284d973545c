"""What the numbers of a trial come to: pure functions over what its ranks left."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.measure.steady import find_steady
from harness.records.record import Rank0Report, RankResult, SlowestRank, Summary
from harness.records.series import Numbers, Series


@dataclass(frozen=True)
class Window:
    """The steps that are measured."""

    mask: NDArray[np.bool_]  # (steps,)
    settled: bool | None


def summarize(
    ranks: Sequence[RankResult], rank0: Rank0Report, batch_size: int, warmup: int
) -> Summary:
    """Throughput is the window's samples over the time of the rank that took longest; a step takes as long as at its
    slowest rank; a phase's share is of the time of all ranks."""
    steps = np.stack([unpack(result.step_seconds) for result in ranks])
    window = find_window(
        steps.max(axis=0), warmup, [taken_up.step for taken_up in ranks[0].interruptions]
    )
    inside = window.mask
    spent = steps[:, inside].sum(axis=1)
    measured = bool(inside.sum() >= 2)
    p50, p90, p99 = (
        np.percentile(steps[:, inside].max(axis=0), (50, 90, 99))
        if measured
        else (None, None, None)
    )
    phases = (
        {name: phase_seconds(ranks, name, inside) for name in ranks[0].step_phases}
        if measured
        else {}
    )
    best = rank0.target.best(rank0.evaluations)
    last = rank0.evaluations[-1] if rank0.evaluations else None
    return Summary(
        throughput=float(inside.sum() * batch_size / spent.max()) if measured else None,
        window_start=int(inside.argmax()) if measured else None,
        window_steps=int(inside.sum()),
        settled=window.settled,
        step_p50=_number(p50),
        step_p90=_number(p90),
        step_p99=_number(p99),
        shares={name: float(seconds.sum() / spent.sum()) for name, seconds in phases.items()},
        slowest=_slowest(ranks, spent, phases.get("communication")),
        final_loss=_number(mean_loss(ranks)[-1:].mean() if steps.shape[1] else None),
        final_metric=last.metrics[rank0.target.name] if last else None,
        best_metric=best.metrics[rank0.target.name] if best else None,
    )


def find_window(seconds: Numbers, warmup: int, resumed_at: Sequence[int]) -> Window:
    """The steady part of every attempt's steps (seconds of each step), never the first `warmup` of them.

    An attempt of too few steps to tell, which may be warm-up all through, counts only if no other is longer.
    """
    inside = np.zeros(len(seconds), dtype=bool)
    attempts = list(itertools.pairwise([0, *resumed_at, len(seconds)]))
    found = [find_steady(seconds[first:end], min(warmup, end - first)) for first, end in attempts]
    known = [one.settled for one in found if one.settled is not None]
    for (first, end), one in zip(attempts, found, strict=True):
        inside[first + one.first : end] = one.settled is not None or not known
    return Window(inside, all(known) if known else None)


def phase_seconds(ranks: Sequence[RankResult], name: str, inside: NDArray[np.bool_]) -> Numbers:
    """Of each rank, how long the phase took in the window."""
    return np.asarray(
        [unpack(result.step_phases.get(name))[inside].sum(dtype=np.float64) for result in ranks]
    )


def mean_loss(ranks: Sequence[RankResult]) -> Numbers:
    """Over ranks, in double precision: their parts of a global batch are equally large."""
    losses: Numbers = np.stack([unpack(result.loss).astype(np.float64) for result in ranks]).mean(
        axis=0
    )
    return losses


def unpack(series: Series | None) -> Numbers:
    return np.empty(0) if series is None else series.unpack()


def _slowest(
    ranks: Sequence[RankResult], spent: Numbers, communication: Numbers | None
) -> SlowestRank | None:
    """Ranks wait for one another while they communicate, so the slowest is the one with most to do besides."""
    if communication is None or len(ranks) < 2:
        return None
    own = spent - communication
    place = int(own.argmax())
    others = np.delete(own, place)
    skew = float((own[place] - others.mean()) / spent.max())
    return SlowestRank(rank=ranks[place].rank, host=ranks[place].host, skew=skew)


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)
