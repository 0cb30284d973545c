"""Computes a trial's figures from the results of its ranks; pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.measure.steady import Steady, find_steady
from harness.records.record import (
    Numbers,
    Rank0Report,
    RankResult,
    SlowestRank,
    Summary,
    losses_of,
    mean_loss,
)
from harness.sweep.cell import Cell

MIN_WINDOW_STEPS = 2  # fewer steps are no measurement
MAX_NODES = 64  # of which a summary has the time of a step, so that it stays small


@dataclass(frozen=True)
class Window:
    """The steps that are measured."""

    mask: NDArray[np.bool_]  # True for the steps in the window, shape (steps,)
    settled: bool | None  # whether all attempts became steady; None if they were too short to tell
    # True for the steps whose phases are known, in the same part of the trial, shape (steps,).
    phases: NDArray[np.bool_]


def summarize(
    ranks: Sequence[RankResult],
    rank0: Rank0Report,
    cell: Cell,
) -> Summary:
    """Return the figures of a trial.

    - Throughput is the window's samples divided by the time of the rank that took longest.
    - A step takes as long as at its slowest rank.
    - The share of a phase is of the time of all ranks together.

    Samples of a script are counted or reported, or throughput is in steps/s: what it gets as its batch
    size may be anything. What could not be measured is None.
    """
    step_seconds = _step_seconds(ranks)
    window = measured_window(ranks, cell)
    of_ranks = [rank.samples_per_step for rank in ranks]
    samples = None if None in of_ranks else sum(filter(None, of_ranks))
    batch_size = samples or (1 if cell.workload.is_script else cell.axes.batch_size)
    window_steps = int(window.mask.sum())
    figures: dict[str, Any] = {}
    if window_steps >= MIN_WINDOW_STEPS:
        in_window = step_seconds[:, window.mask]
        p50, p90, p99 = np.percentile(in_window.max(axis=0), (50, 90, 99)).tolist()
        figures = {
            "throughput": float(window_steps * batch_size / in_window.sum(axis=1).max()),
            "window_start": int(window.mask.argmax()),
            "step_p50": p50,
            "step_p90": p90,
            "step_p99": p99,
            **_phase_figures(ranks, step_seconds, window.phases),
        }
    final_loss = mean_loss(losses_of(ranks))[-1:]
    final_loss = final_loss[~np.isnan(final_loss)]  # a script may not have reported it
    target, best, final = rank0.target.name, rank0.best_evaluation, rank0.final_evaluation
    return Summary(
        window_steps=window_steps,
        settled=window.settled,
        throughput_unit="samples/s" if samples else cell.throughput_unit,
        samples_per_step=samples,
        final_loss=float(final_loss[0]) if len(final_loss) else None,
        final_metric=None if final is None else final.metrics[target],
        best_metric=None if best is None else best.metrics[target],
        **figures,
    )


def slowest_rank_seconds(ranks: Sequence[RankResult], mask: NDArray[np.bool_]) -> Numbers:
    """Return the seconds of the steps in `mask` of the rank that took longest, shape (steps,).

    Throughput is counted over that rank's time.
    """
    steps = _step_seconds(ranks)[:, mask]
    seconds: Numbers = steps[steps.sum(axis=1).argmax()]
    return seconds


def measured_window(ranks: Sequence[RankResult], cell: Cell) -> Window:
    """Return the window of a trial, given the results of its ranks.

    That of a script is all that follows the warm-up. It may evaluate in a step, which can't be told, and a
    window that is searched would have the evaluation in one trial and not in another.

    A step takes as long as at its slowest rank. Steps that a loader has fetched for in an untimed pause are
    never in the window, and whether the others are does not depend on them. Nor are steps whose phases were
    timed, which takes time, where most steps have been without.
    """
    seconds = _step_seconds(ranks).max(axis=0)
    count = len(seconds)
    resumed_at = [interruption.step for interruption in ranks[0].interruptions]
    is_timed = np.ones(count, dtype=bool)
    is_timed[[step for step in ranks[0].refilled_steps if step < count]] = False
    has_phases = np.zeros(count, dtype=bool)
    for series in ranks[0].step_phases.values():
        has_phases |= np.isfinite(series)
    has_phases &= is_timed
    if has_phases.sum() < count / 2:
        is_timed &= ~has_phases
    timed_before = [int(is_timed[:step].sum()) for step in resumed_at]
    is_searched = not cell.workload.is_script
    window = find_window(seconds[is_timed], cell.warmup, timed_before, is_searched=is_searched)
    # A step that is not timed is in the part of the trial that the next one is in that is.
    next_timed = np.cumsum(is_timed) - is_timed
    is_measured = np.append(window.mask, False)[next_timed]
    return Window(is_measured & is_timed, window.settled, is_measured & has_phases)


def find_window(
    seconds: Numbers, warmup: int, resumed_at: Sequence[int], *, is_searched: bool = True
) -> Window:
    """Return the window of steps of the given durations, shape (steps,).

    It has the steady part of every attempt; attempts after the first begin at the steps
    `resumed_at`. The first `warmup` steps of an attempt are never in it. An attempt that is too
    short to decide on may be warm-up throughout, and counts only if all attempts are that short.
    Without `is_searched` all that follows the warm-up is in it, and settled if all of it is steady.
    """
    attempts = list(itertools.pairwise([0, *resumed_at, len(seconds)]))
    steady_parts = []
    for start, end in attempts:
        first = min(warmup, end - start)
        steady = find_steady(seconds[start:end], first)
        if not is_searched and steady.first_step > first:
            steady = Steady(first, settled=False)
        steady_parts.append(steady)
    decided = [steady.settled for steady in steady_parts if steady.settled is not None]
    mask = np.zeros(len(seconds), dtype=bool)
    for (start, end), steady in zip(attempts, steady_parts, strict=True):
        mask[start + steady.first_step : end] = steady.settled is not None or not decided
    return Window(mask, all(decided) if decided else None, phases=mask)


def _step_seconds(ranks: Sequence[RankResult]) -> Numbers:
    """Return how long each step took each rank, float64, shape (ranks, steps)."""
    seconds: Numbers = np.stack([np.asarray(rank.step_seconds) for rank in ranks]).astype(
        np.float64
    )
    return seconds


def _phase_figures(
    ranks: Sequence[RankResult], step_seconds: Numbers, mask: NDArray[np.bool_]
) -> Mapping[str, Any]:
    """Return the figures that come from the phases of the steps in `mask`.

    `step_seconds` has the shape (ranks, steps).
    """
    steps = int(mask.sum())
    if not steps:
        return {}
    busy = step_seconds[:, mask].sum(axis=1)  # of each rank
    total = busy.sum()
    figures: dict[str, Any] = {"shares": {}, "phase_steps": steps}
    for name in ranks[0].step_phases:
        rows = [result.step_phases[name][mask] for result in ranks]
        figures["shares"][name] = float(np.nansum(rows, dtype=np.float64) / total)
        if name == "communication" and len(ranks) > 1:
            # Ranks wait for each other while they communicate, so all of them take equally long. The
            # slowest is the one that spends the most time on anything else.
            whole = busy.max()
            busy = busy - np.nansum(rows, axis=1, dtype=np.float64)
            index = int(busy.argmax())
            skew = float((busy[index] - np.delete(busy, index).mean()) / whole)
            slowest = ranks[index]
            figures["slowest"] = SlowestRank(rank=slowest.rank, host=slowest.host, skew=skew)
    if len(ranks) == 1 or "slowest" in figures:  # else it is not known who waited for whom
        figures["node_seconds"] = _node_seconds(ranks, busy / steps)
    return figures


def _node_seconds(ranks: Sequence[RankResult], busy: Numbers) -> dict[str, float]:
    """Return the seconds of a step of the slowest rank of each node, of MAX_NODES at most.

    `busy` has those of each rank without communication, shape (ranks,).
    """
    nodes: dict[str, float] = {}
    for rank, seconds in sorted(zip(ranks, busy.tolist(), strict=True), key=lambda pair: -pair[1]):
        if seconds > 0 and len(nodes) < MAX_NODES:
            nodes.setdefault(rank.host, seconds)
    return nodes
