"""Quantiles of a distribution of any shape, with intervals from order statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.statistics.interval import CONFIDENCE


@dataclass(frozen=True)
class Quantile:
    """A quantile of a sample, with bounds of the true one; None where the values are too few."""

    value: float
    low: float | None
    high: float | None


def quantile(values: NDArray[np.float64], share: float) -> Quantile:
    """Return the value that a share of the distribution does not exceed, from a sample of it.

    `values` has the shape (count,), and `share` is strictly between 0 and 1. The estimate is the
    smallest value that so large a share of the sample does not exceed. Bounds are values of the
    sample too, so that they assume nothing of the distribution but independent values: how many of
    n values are at most the true quantile is binomial with the chance `share`, and the l-th and the
    u-th smallest enclose it at least as often as `CONFIDENCE` says if

        P(count < l) <= a    and    P(count >= u) <= a,    a = (1 - CONFIDENCE) / 2

    (Hahn and Meeker, Statistical Intervals, 1991, section 5.2). Raises ValueError without values.
    """
    if not len(values):
        raise ValueError("a quantile of no values")
    from scipy.special import bdtr  # quick to load, unlike scipy.stats

    ordered = np.sort(values)
    count = len(ordered)
    tail = (1 - CONFIDENCE) / 2
    at_most = bdtr(np.arange(count + 1), count, share)  # the chance of a count of 0, 1, … or fewer
    lower = int(np.searchsorted(at_most, tail, side="right"))
    upper = int(np.searchsorted(at_most, 1 - tail, side="left")) + 1
    estimate = max(1, math.ceil(share * count))
    return Quantile(
        value=float(ordered[estimate - 1]),
        low=float(ordered[lower - 1]) if lower >= 1 else None,
        high=float(ordered[upper - 1]) if upper <= count else None,
    )
