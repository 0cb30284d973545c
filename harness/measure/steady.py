"""Where warm-up ends and steady state begins: a change-point test on step times."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BIN = 5  # steps, of which the median is taken, so that a straggling step is no change
MOST_BINS = 200
FEWEST_BINS = 4  # below that nothing can be told
EQUIVALENT = 0.07  # levels closer than this are one: slow drift is no warm-up
SHORTEST = 2  # bins that a level holds, so that one odd bin is none
NOISE_FLOOR = 0.005  # of a step: smaller deviations are never taken for signal
STEADY_SHARE = 0.25  # of the steps that the last level must hold
# The shortest series, in steps, in which a warm-up level and a steady level after it can be told apart.
MIN_STEPS_TO_SETTLE = BIN * (SHORTEST + FEWEST_BINS)


@dataclass(frozen=True)
class Steady:
    """Steps from `first` on are steady. `settled` is False if they never got there, None if there are too few to tell;
    then `first` is where the search began."""

    first: int
    settled: bool | None


def find_steady(seconds: NDArray[np.float64], start: int = 0) -> Steady:
    """The steady part of a row of step times, none of the first `start` steps in it.

    The logarithms of bin medians are cut into levels by penalized least squares, solved exactly (optimal partitioning:
    Jackson et al., 2005, doi:10.1109/LSP.2001.838216), with noise estimated from successive differences. Steady
    state is the longest run of levels at the end that are equivalent to the last one, as Barrett et al. judge warm-up
    (2017, doi:10.1145/3133876); it must hold a quarter of the steps.
    """
    steps = len(seconds) - start
    width = max(BIN, math.ceil(steps / MOST_BINS))
    count = steps // width
    if count < FEWEST_BINS:
        return Steady(start, None)
    bins = np.median(seconds[len(seconds) - count * width :].reshape(count, width), axis=1)
    starts, levels = _levels(np.log(np.maximum(bins, 1e-9)))
    place = len(starts) - 1
    while place > 0 and abs(levels[place - 1] - levels[-1]) <= math.log1p(EQUIVALENT):
        place -= 1
    held = count - starts[place]
    if held < max(FEWEST_BINS, STEADY_SHARE * count):
        return Steady(start, False)
    return Steady(start if place == 0 else len(seconds) - held * width, True)


def _levels(values: NDArray[np.float64]) -> tuple[list[int], list[float]]:
    """Where each level starts, and its mean: the cut with the least squared error plus penalty for each level."""
    count = len(values)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    squares = np.concatenate([[0.0], np.cumsum(values**2)])
    # The median absolute difference of two normal values with deviation s is 0.954 s.
    noise = max(NOISE_FLOOR, float(np.median(np.abs(np.diff(values)))) / 0.954)
    penalty = 3 * noise**2 * math.log(count)
    best, origin = np.zeros(count + 1), np.zeros(count + 1, dtype=int)
    best[0] = -penalty
    best[1:SHORTEST] = np.inf
    for end in range(SHORTEST, count + 1):
        first = np.arange(end - SHORTEST + 1)
        error = squares[end] - squares[first] - (sums[end] - sums[first]) ** 2 / (end - first)
        cost = best[first] + error + penalty
        origin[end] = int(np.argmin(cost))
        best[end] = cost[origin[end]]
    starts, end = [], count
    while end > 0:
        starts.append(int(origin[end]))
        end = starts[-1]
    starts.reverse()
    ends = [*starts[1:], count]
    return starts, [float(values[a:b].mean()) for a, b in zip(starts, ends, strict=True)]
