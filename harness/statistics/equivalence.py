"""Tests of equivalence: whether a difference is too small to matter, and the pairs needed to show it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.statistics.estimate import POWER, Estimate
from harness.statistics.interval import student_quantile
from harness.statistics.verdict import ALPHA

MOST_PAIRS = 1_000_000  # beyond it a study is not worth planning


@dataclass(frozen=True, kw_only=True)
class Equivalence:
    """Two one-sided tests (TOST) of one difference, at `ALPHA`."""

    margin: float  # the smallest difference that matters, on the scale of the estimate
    pairs: int  # values that the estimate is made of
    difference: float  # the estimate
    p_same: float  # of the claim that the true difference is within the margin
    # The interval that is within the margin exactly if the claim is shown; None without spread.
    low: float | None
    high: float | None
    min_provable_margin: float | None  # the smallest margin for which the claim is shown
    pairs_needed: int | None  # to show it with a chance of POWER, if there is no true difference

    @property
    def is_shown(self) -> bool:
        """Return whether the difference is shown to be within the margin."""
        return self.p_same <= ALPHA


def equivalence(estimate: Estimate, margin: float) -> Equivalence:
    """Test whether an estimated difference is smaller than `margin`.

    TOST at level a shows it exactly if the interval of confidence 1 - 2a is within the margin. So the
    farther bound of that interval is the smallest margin that can be shown.
    """
    low = high = provable = needed = None
    if estimate.standard_error is not None:
        low, high = estimate.interval(1 - 2 * ALPHA)
        provable = max(abs(low), abs(high))
        deviation = estimate.standard_error * math.sqrt(estimate.count)
        needed = pairs_needed(deviation, margin)
    return Equivalence(
        margin=margin,
        pairs=estimate.count,
        difference=estimate.value,
        p_same=estimate.p_same(-margin, margin),
        low=low,
        high=high,
        min_provable_margin=provable,
        pairs_needed=needed,
    )


def pairs_needed(deviation: float, margin: float) -> int | None:
    """Return how many pairs show with a chance of `POWER` that equal sides are within `margin`.

    `deviation` is that of a pair's difference. For n pairs with Student's quantiles t of n - 1
    degrees of freedom, the power of TOST at no true difference is at least `POWER` where

        (t(1 - ALPHA) + t((1 + POWER) / 2)) deviation / sqrt(n) <= margin

    (Chow, Shao and Wang 2008, "Sample Size Calculations in Clinical Research", 3.1.3). Returns None
    for more than `MOST_PAIRS`, and for a margin of zero.
    """
    if margin <= 0 or not _suffice(MOST_PAIRS, deviation, margin):
        return None
    fewest, enough = 2, MOST_PAIRS
    while fewest < enough:
        middle = (fewest + enough) // 2
        if _suffice(middle, deviation, margin):
            enough = middle
        else:
            fewest = middle + 1
    return enough


def _suffice(pairs: int, deviation: float, margin: float) -> bool:
    """Return whether this number of pairs has the power that `pairs_needed` requires."""
    quantiles = student_quantile(pairs - 1, 1 - ALPHA)
    quantiles += student_quantile(pairs - 1, (1 + POWER) / 2)
    return bool(quantiles * deviation / math.sqrt(pairs) <= margin)
