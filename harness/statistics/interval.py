"""Intervals of a mean and of a probability. Imports no NumPy, so that tables of plans load fast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

CONFIDENCE = 0.95  # of intervals, unless a caller says otherwise
KEPT_QUANTILES = 4096
LARGEST_EXPONENT = 700.0  # math.exp overflows above it


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval, which need not be symmetric."""

    mean: float  # of the independent values
    bounds: tuple[float, float] | None  # None for fewer than two values
    count: int  # independent values that the mean is over

    @property
    def half_width(self) -> float | None:
        """Half the distance between the bounds, None without any."""
        if self.bounds is None:
            return None
        low, high = self.bounds
        return (high - low) / 2


def exp(value: float) -> float:
    """Return e to the power of the value, infinity where that is too large for a float."""
    return math.exp(value) if value < LARGEST_EXPONENT else math.inf


@lru_cache(maxsize=KEPT_QUANTILES)
def student_quantile(degrees_of_freedom: float, probability: float) -> float:
    """Return the quantile of Student's t distribution, which takes SciPy some 0.1 ms to compute."""
    # Only now, because most commands need none: it takes as long to load as their own code.
    from scipy.special import stdtrit  # quicker to load than scipy.stats

    return float(stdtrit(degrees_of_freedom, probability))


def student_probability(degrees_of_freedom: float, value: float) -> float:
    """Return the probability that a variable with Student's t distribution is below a value."""
    from scipy.special import stdtr

    return float(stdtr(degrees_of_freedom, value))


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of two values or more, as estimated from a sample.

    `statistics.stdev` takes ten times as long, as it computes with fractions.
    """
    mean = fmean(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return math.sqrt(squares / (len(values) - 1))


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the mean with Student's interval, for independent and nearly normal values.

    With n values of mean m and deviation s it is m ± t s / sqrt(n), where t is the quantile of
    n - 1 degrees of freedom. Raises ValueError without values.
    """
    if not values:
        raise ValueError("an interval of no values")
    count = len(values)
    if count < 2:
        return Interval(values[0], None, 1)
    mean = fmean(values)
    quantile = student_quantile(count - 1, (1 + confidence) / 2)
    half_width = quantile * deviation(values) / math.sqrt(count)
    return Interval(mean, (mean - half_width, mean + half_width), count)


def geometric_mean_interval(values: Sequence[float]) -> Interval:
    """Return the geometric mean with its interval, for positive values such as rates and ratios.

    It is the exponential of `mean_interval` of the logarithms. So its bounds are positive too, and
    half as large and twice as large are equally far from the mean. Raises ValueError without
    values, and for one that is not positive.
    """
    if len(values) == 1:
        return Interval(values[0], None, 1)
    interval = mean_interval([math.log(value) for value in values])
    assert interval.bounds is not None
    low, high = interval.bounds
    return Interval(exp(interval.mean), (exp(low), exp(high)), interval.count)


def share_interval(successes: int, tries: int) -> tuple[float, float]:
    """Return bounds of the probability of a success, from `successes` among independent tries.

    Clopper and Pearson's (Biometrika 1934, doi:10.1093/biomet/26.4.404): with tails of
    a = (1 - CONFIDENCE) / 2 on both sides and the quantiles B of the beta distribution,

        B(a; k, n - k + 1)  to  B(1 - a; k + 1, n - k).

    They hold the probability at least as often as `CONFIDENCE` says. Raises ValueError without
    tries.
    """
    if not 0 <= successes <= tries or not tries:
        raise ValueError(f"{successes} of {tries} tries")
    from scipy.special import betaincinv

    tail = (1 - CONFIDENCE) / 2
    low, high = 0.0, 1.0
    if successes:
        low = float(betaincinv(successes, tries - successes + 1, tail))
    if successes < tries:
        high = float(betaincinv(successes + 1, tries - successes, 1 - tail))
    return low, high
