"""Intervals of a mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

CONFIDENCE = 0.95  # of intervals, unless a caller says otherwise
# Of two values, Student's interval reaches nine standard deviations to either side.
FEWEST_VALUES = 3  # that an interval is shown of, and that a sequence decides by
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


def student_quantile(degrees_of_freedom: float, probability: float) -> float:
    """Return the quantile of Student's t distribution."""
    # Only now, because most commands need none: it takes as long to load as their own code.
    from scipy.special import stdtrit  # quicker to load than scipy.stats

    return float(stdtrit(degrees_of_freedom, probability))


def student_probability(degrees_of_freedom: float, value: float) -> float:
    """Return the probability that a variable with Student's t distribution is below a value."""
    from scipy.special import stdtr

    return float(stdtr(degrees_of_freedom, value))


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
    half_width = quantile * stdev(values) / math.sqrt(count)
    bounds = (mean - half_width, mean + half_width)
    return Interval(mean, bounds, count)


def geometric_mean_interval(values: Sequence[float]) -> Interval:
    """Return the geometric mean with its interval, for positive values such as rates and ratios.

    It is the exponential of `mean_interval` of the logarithms. So its bounds are positive too, and
    half as large and twice as large are equally far from the mean. Raises ValueError without
    values, and for one that is not positive.
    """
    if len(values) == 1:
        return Interval(values[0], None, 1)
    logs = [math.log(value) for value in values]
    interval = mean_interval(logs)
    assert interval.bounds is not None
    low, high = interval.bounds
    bounds = (exp(low), exp(high))
    return Interval(exp(interval.mean), bounds, interval.count)


def mean_by_seed(values: Sequence[float], seeds: Sequence[int]) -> dict[int, float]:
    """Return the mean value of each seed, in order of appearance; `seeds[i]` belongs to
    `values[i]`.

    Only these means count as independent. Repeats of a seed share whatever the seed brings (initial
    weights, the order of the data): they show nothing of how much the mean would move with others.
    """
    by_seed: dict[int, list[float]] = {}
    for value, seed in zip(values, seeds, strict=True):
        by_seed.setdefault(seed, []).append(value)
    return {seed: fmean(repeats) for seed, repeats in by_seed.items()}
