"""Finds the steps of a trial that are measured: those after its warm-up.

Where warm-up ends and steady state begins is found by a change-point test on step times.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from harness.records.record import Numbers, RankResult
from harness.sweep.cell import Cell

Ranks: TypeAlias = Sequence[RankResult]  # what the ranks of a trial left, in their order
Mask: TypeAlias = NDArray[np.bool_]  # True for some steps, shape (steps,)

# Steps are grouped into bins, and the test runs on the bins' medians: a single slow step is no
# change.
MIN_BIN_STEPS = 5
MAX_BINS = 200  # more steps make larger bins, since the test is quadratic in their number
MIN_BINS = 4  # fewer do not allow a decision
MIN_LEVEL_BINS = 2  # bins that a level has at least, so that a single odd bin is none
EQUIVALENT = 0.07  # levels closer than this count as equal: slow drift is no warm-up
NOISE_FLOOR = 0.005  # of a step's duration: smaller deviations are never taken for a signal
MIN_STEADY_SHARE = 0.25  # of the steps that the steady part has at least
# The shortest series, in steps, in which a warm-up level and a steady level after it can be told
# apart.
MIN_STEPS_TO_SETTLE = MIN_BIN_STEPS * (MIN_LEVEL_BINS + MIN_BINS)

# The median absolute difference of two normal values with deviation s is 0.954 s: their difference
# has deviation sqrt(2) s, and the median of |N(0, 1)| is 0.6745.
MEDIAN_DIFFERENCE = 0.954


@dataclass(frozen=True)
class Window:
    """The steps that are measured."""

    mask: Mask  # True for the steps in the window, shape (steps,)
    # Whether all attempts became steady; None if they were too short to tell.
    settled: bool | None
    # True for the steps whose phases are known, in the same part of the trial, shape (steps,).
    phases: Mask


def step_seconds(ranks: Ranks) -> Numbers:
    """Return how long each step took each rank, float64, shape (ranks, steps)."""
    return np.array([rank.step_seconds for rank in ranks], dtype=np.float64)


def measured_window(ranks: Ranks, cell: Cell) -> Window:
    """Return the window of a trial, given the results of its ranks.

    That of a script is all that follows the warm-up. It may evaluate in a step, which can't be told, and a
    window that is searched would have the evaluation in one trial and not in another.

    A step takes as long as at its slowest rank. Steps that a loader has fetched for in an untimed pause are
    never in the window, and whether the others are does not depend on them. Nor are steps whose phases were
    timed, which takes time, where most steps have been without.
    """
    first = ranks[0]
    seconds = step_seconds(ranks).max(axis=0)
    count = len(seconds)
    is_timed = ~np.isin(np.arange(count), first.refilled_steps)
    has_phases = np.zeros_like(is_timed)
    for series in first.step_phases.values():
        has_phases |= np.isfinite(series)
    has_phases &= is_timed
    if has_phases.sum() < count / 2:
        is_timed &= ~has_phases
    timed_before = np.append(0, np.cumsum(is_timed))  # each step
    resumed_at = [timed_before[interruption.step] for interruption in first.interruptions]
    is_searched = not cell.workload.is_script
    window = find_window(seconds[is_timed], cell.warmup, resumed_at, is_searched=is_searched)
    # A step that is not timed is in the part of the trial that the next one is in that is.
    is_measured = np.append(window.mask, False)[timed_before[:-1]]
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
    parts = []  # of attempts: the steps to measure, and whether they became steady
    for start, end in itertools.pairwise([0, *resumed_at, len(seconds)]):
        first = min(warmup, end - start)
        first_steady, has_settled = find_steady(seconds[start:end], first)
        if not is_searched and first_steady > first:
            first_steady, has_settled = first, False
        steps = slice(start + first_steady, end)
        parts.append((steps, has_settled))
    decided = [has_settled for _, has_settled in parts if has_settled is not None]
    mask = np.zeros(len(seconds), dtype=bool)
    for steps, has_settled in parts:
        mask[steps] = has_settled is not None or not decided
    settled = all(decided) if decided else None
    return Window(mask, settled, phases=mask)


def find_steady(seconds: Numbers, start: int = 0) -> tuple[int, bool | None]:
    """Return the first steady step of step times in seconds, shape (steps,), not before step `start`.

    Also returns whether they became steady: False if they did not, and None if there are too few to
    decide. In both cases the step is `start`.

    The logarithms of the bins' medians are cut into levels by penalized least squares. Steady state
    is the longest run of levels at the end that are equivalent to the last one, as Barrett et al.
    (2017, doi:10.1145/3133876) judge warm-up. It must have a quarter of the steps.
    """
    steps = len(seconds) - start
    bin_steps = max(MIN_BIN_STEPS, math.ceil(steps / MAX_BINS))
    bins = steps // bin_steps
    if bins < MIN_BINS:
        return start, None
    # The bins end with the last step. Steps that fill no bin are left out at the beginning.
    newest = seconds[-bins * bin_steps :]
    medians = np.median(newest.reshape(bins, bin_steps), axis=1)
    levels = _levels(np.log(np.maximum(medians, 1e-9)))
    _, last_mean = levels[0]
    first_steady = bins
    for level_start, mean in levels:
        if abs(mean - last_mean) > math.log1p(EQUIVALENT):
            break
        first_steady = level_start
    steady_bins = bins - first_steady
    if steady_bins < max(MIN_BINS, MIN_STEADY_SHARE * bins):
        return start, None if steps < MIN_STEPS_TO_SETTLE else False
    if first_steady == 0:
        return start, True
    return len(seconds) - steady_bins * bin_steps, True


def _levels(values: Numbers) -> list[tuple[int, float]]:
    """Return where each level starts, and its mean, the last level first.

    The cut minimizes the sum of squared errors around the levels' means plus a penalty for each
    level. Optimal partitioning (Jackson et al. 2005, doi:10.1109/LSP.2001.838216) finds the minimum
    exactly: with F(t) the least cost of the first t values and E(s, t) the squared error of values
    s to t - 1 around their mean,

        F(0) = -penalty,    F(t) = min over s of F(s) + E(s, t) + penalty

    The penalty is 3 noise^2 log(n) for n values. The noise is estimated from differences of
    successive values, which hardly depend on the levels.
    """
    count = len(values)
    # Prefix sums give every E(s, t) = sum of squares - (sum)^2 / (t - s) in constant time.
    sums = np.append(0.0, np.cumsum(values))
    squares = np.append(0.0, np.cumsum(values**2))
    typical_difference = np.median(np.abs(np.diff(values)))
    noise = max(NOISE_FLOOR, typical_difference / MEDIAN_DIFFERENCE)
    penalty = 3 * noise**2 * math.log(count)
    least_cost = np.zeros(count + 1)
    best_start = np.zeros(count + 1, dtype=int)  # where the last level begins, by end
    least_cost[0] = -penalty
    least_cost[1:MIN_LEVEL_BINS] = np.inf  # no level is that short
    for end in range(MIN_LEVEL_BINS, count + 1):
        start = np.arange(end - MIN_LEVEL_BINS + 1)
        sum_of_level = sums[end] - sums[start]
        error = squares[end] - squares[start] - sum_of_level**2 / (end - start)
        cost = least_cost[start] + error + penalty
        best_start[end] = int(np.argmin(cost))
        least_cost[end] = cost[best_start[end]]
    levels = []
    end = count
    while end > 0:
        first = int(best_start[end])
        mean = float(values[first:end].mean())
        levels.append((first, mean))
        end = first
    return levels
