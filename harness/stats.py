"""Statistics as pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True)
class Interval:
    """A mean over `count` values, and the half width of its confidence interval; None for fewer than two values."""

    mean: float
    half_width: float | None
    count: int


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Student's interval of the mean, for values that are independent and nearly normal, such as trials' means.

    Raises ValueError without values.
    """
    if not values:
        raise ValueError("an interval of no values")
    if len(values) < 2:
        return Interval(values[0], None, 1)
    from scipy.special import stdtrit  # quick to load, unlike scipy.stats

    quantile = float(stdtrit(len(values) - 1, (1 + confidence) / 2))
    return Interval(fmean(values), quantile * stdev(values) / math.sqrt(len(values)), len(values))
