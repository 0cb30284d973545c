"""Says why the mean of a trace can't be known from it, although it has an interval.

The interval of `harness.statistics.trace` takes what happened in a trace for a fair sample of what
happens in general. A few large stragglers, a clock that has changed its speed a few times, and a drift
that is as long as the trace are no fair sample: the next trace may have twice as many or none.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from harness.statistics.trace import FEWEST, batch_means

Numbers = NDArray[np.float64]

# Steps from which on the interval holds, or `doubt_about_mean` says that it may not, in 93% of traces of
# every kind that `make bench-statistics` simulates. In fewer, a drift hides under jitter; and what comes
# once in 500 steps is missed by more than exp(-3) = 5% of trials.
FEWEST_STEPS = 1500
FEWEST_EVENTS = 20  # stragglers, or changes of speed; a mean over fewer is not known
# A straggler is above the median by so many standard deviations of the usual steps, and by so large a
# part of the median where those hardly vary.
STRAGGLER_DEVIATIONS = 6.0
LEAST_DEVIATION = 0.002
MOST_STRAGGLERS = 0.1  # of all values; more are another speed
STRAGGLER_SHARE = (
    0.25  # of the variance, from which on stragglers decide how well the mean is known
)
DEVIATIONS_OF_MAD = 1.4826  # the standard deviation of normal values over their median deviation
# The part of the variance that two speeds explain: 0.64 of normal values, 0.75 of uniform ones.
TWO_SPEEDS_SHARE = 0.8
DRIFT_BATCHES = 24
DRIFT_QUANTILE = 2.326  # which a normal value exceeds in 1% of cases


def doubt_about_mean(values: Numbers) -> str | None:
    """Return why the mean of a trace (n,) can't be known from it, None if nothing in it says so.

    What did not happen in a trace can't be seen in it: with n values, stragglers that come less than
    once in n / 3 are missed in 5% of traces, and nothing tells a clock that has only been fast.
    """
    if len(values) < FEWEST:
        return None
    return _stragglers(values) or _two_speeds(values) or _drift(values)


def doubt_about_length(steps: int) -> str | None:
    """Return why the mean of so few steps can't be known from them, None if they are enough.

    It says nothing against the mean over several trials, whose interval is over trials.
    """
    if steps >= FEWEST_STEPS:
        return None
    return f"{steps:,} steps are too few to tell a drift from jitter, or to have rare stragglers"


def _stragglers(values: Numbers) -> str | None:
    """Return the doubt about a mean that a few slow values decide: they are too few to count on.

    Consecutive ones count as one event, as whatever slows one step down may slow the next.
    """
    middle = float(np.median(values))
    distances = values - middle
    deviation = DEVIATIONS_OF_MAD * float(np.median(np.abs(distances)))
    limit = STRAGGLER_DEVIATIONS * max(deviation, LEAST_DEVIATION * abs(middle))
    is_straggler = distances > limit
    events = int(is_straggler[0]) + int((is_straggler[1:] & ~is_straggler[:-1]).sum())
    count = int(is_straggler.sum())
    if not 0 < events < FEWEST_EVENTS or count > MOST_STRAGGLERS * len(values):
        return None
    squares = distances**2
    if squares[is_straggler].sum() < STRAGGLER_SHARE * squares.sum():
        return None
    return _describe_stragglers(values, is_straggler)


def _describe_stragglers(values: Numbers, is_straggler: NDArray[np.bool_]) -> str:
    """Return how many values are stragglers, and their part of the sum of all values."""
    count = int(is_straggler.sum())
    noun, verb = ("straggler", "carries") if count == 1 else ("stragglers", "carry")
    share = values[is_straggler].sum() / values.sum()
    return f"{count} {noun} {verb} {_percent(share)} of the time"


def _two_speeds(values: Numbers) -> str | None:
    """Return the doubt about a mean of two speeds between which a trace has seldom changed.

    Few slow values are stragglers, far above others that are more frequent.

    The values are cut where that explains most of their variance (Otsu 1979,
    doi:10.1109/TSMC.1979.4310076): with a share w below the cut, and means m_0 below and m_1 above
    it, that is w (1 - w) (m_1 - m_0)^2.
    """
    variance = float(values.var())
    if variance == 0:
        return None
    ordered = np.sort(values)
    count = len(ordered)
    below = np.arange(1, count)
    sums = np.cumsum(ordered)
    low_means = sums[:-1] / below
    high_means = (sums[-1] - sums[:-1]) / (count - below)
    explained = below * (count - below) / count**2 * (high_means - low_means) ** 2
    cut = int(explained.argmax())
    if explained[cut] < TWO_SPEEDS_SHARE * variance:
        return None
    is_slow = values > ordered[cut]
    changes = int((is_slow[1:] != is_slow[:-1]).sum())
    if changes >= FEWEST_EVENTS:
        return None
    if is_slow.sum() <= MOST_STRAGGLERS * count:
        return _describe_stragglers(values, is_slow)
    times = {1: "once", 2: "twice"}.get(changes, f"{changes} times")
    ratio = high_means[cut] / low_means[cut] - 1
    return f"it had two speeds, {_percent(ratio)} apart, and changed between them {times}"


def _drift(values: Numbers) -> str | None:
    """Return the doubt about a mean that still moves with the length of the trace.

    Neighbors among some 24 batches are more alike than those of independent ones, by von Neumann's
    ratio of their squared differences to their squared deviations (1941,
    doi:10.1214/aoms/1177731677). For k independent normal values it has the mean 2 and the variance
    4 (k - 2) / (k^2 - 1), and it is below the limit in 1% of cases.
    """
    if len(values) < DRIFT_BATCHES:
        return None
    batches = batch_means(values, DRIFT_BATCHES)
    count = len(batches)
    if math.isclose(batches.max(), batches.min()):
        return None  # rounding errors of equal means are alike, too
    squares = float(((batches - batches.mean()) ** 2).sum())
    ratio = float((np.diff(batches) ** 2).sum()) / squares
    if ratio >= 2 - DRIFT_QUANTILE * math.sqrt(4 * (count - 2) / (count**2 - 1)):
        return None
    spread = batches.max() / batches.min() - 1
    length = len(values) // count
    return f"its speed drifts: batches of {length} steps are up to {_percent(spread)} apart"


def _percent(share: float) -> str:
    """Return a share in percent, with a decimal below 10%."""
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"
