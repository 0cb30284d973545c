"""The interval of a mean of few independent values; loads without NumPy, because tables of plans do."""

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


def share_interval(count: int, of: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's bounds of a probability, of which `count` of `of` independent tries came true; they hold
    it at least as often as they say (Biometrika 1934, doi:10.1093/biomet/26.4.404). Raises ValueError without tries."""
    if not 0 <= count <= of or not of:
        raise ValueError(f"{count} of {of} tries")
    from scipy.special import betaincinv

    tail = (1 - confidence) / 2
    low = float(betaincinv(count, of - count + 1, tail)) if count else 0.0
    high = float(betaincinv(count + 1, of - count, 1 - tail)) if count < of else 1.0
    return low, high
