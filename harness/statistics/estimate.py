"""Estimates of a difference between two sides, and the questions that they answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit  # quick to load, unlike scipy.stats

POWER = 0.8  # with which the smallest detectable effect is detected


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How much what is measured moves between one time and another: a deviation and its degrees of freedom."""

    deviation: float
    degrees_of_freedom: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A difference of B from A, such as that of log throughputs, with its standard error; None if unknown."""

    value: float
    standard_error: float | None
    degrees_of_freedom: float  # degrees of freedom of the error
    count: int  # pairs, or values of the side that has fewer
    paired: bool

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Student's; everything is possible where the error is unknown."""
        if self.standard_error is None:
            return -math.inf, math.inf
        half = float(stdtrit(self.degrees_of_freedom, (1 + confidence) / 2)) * self.standard_error
        return self.value - half, self.value + half

    def p_above(self, bound: float) -> float:
        """The p-value of the claim that the true difference is larger than `bound`."""
        if self.standard_error is None:
            return 1.0
        if self.standard_error == 0:
            return 0.0 if self.value > bound else 1.0
        return float(stdtr(self.degrees_of_freedom, -(self.value - bound) / self.standard_error))

    def p_below(self, bound: float) -> float:
        """The p-value of the claim that the true difference is smaller than `bound`."""
        mirrored = Estimate(
            value=-self.value,
            standard_error=self.standard_error,
            degrees_of_freedom=self.degrees_of_freedom,
            count=self.count,
            paired=self.paired,
        )
        return mirrored.p_above(-bound)

    def p_change(self) -> float:
        """The two-sided p-value of the claim that there is a difference."""
        return min(1.0, 2 * min(self.p_above(0.0), self.p_below(0.0)))

    def p_same(self, least: float, most: float) -> float:
        """The p-value of the claim that the difference lies between the two: two one-sided tests (Schuirmann 1987,
        doi:10.1007/BF01068419)."""
        return max(self.p_above(least), self.p_below(most))

    def min_detectable_effect(self, alpha: float = 0.05, margin: float = 0.0) -> float | None:
        """The size of a true difference that is found with a chance of `POWER`, by a two-sided test at `alpha` that
        also asks for an estimate of at least `margin`."""
        if self.standard_error is None:
            return None
        asked = max(
            float(stdtrit(self.degrees_of_freedom, 1 - alpha / 2)) * self.standard_error, margin
        )
        return asked + float(stdtrit(self.degrees_of_freedom, POWER)) * self.standard_error


def paired(differences: Sequence[float]) -> Estimate:
    """From B - A of each block; raises ValueError without any."""
    if not differences:
        raise ValueError("an estimate from no pairs")
    count = len(differences)
    error = float(np.std(differences, ddof=1)) / math.sqrt(count) if count > 1 else None
    return Estimate(
        value=float(np.mean(differences)),
        standard_error=error,
        degrees_of_freedom=count - 1,
        count=count,
        paired=True,
    )


def unpaired(a: Sequence[float], b: Sequence[float], drifts: Sequence[Drift] = ()) -> Estimate:
    """From values of both sides, independent of each other and of unequal spread (Welch 1947,
    doi:10.1093/biomet/34.1-2.28); raises ValueError if a side has none. `drifts` come on top, each known independently
    of the others: the difference moves by them, however many values a side has."""
    if not a or not b:
        raise ValueError("an estimate from no values")
    value, fewer = float(np.mean(b) - np.mean(a)), min(len(a), len(b))
    if fewer < 2:
        return Estimate(
            value=value, standard_error=None, degrees_of_freedom=0, count=fewer, paired=False
        )
    parts = [(float(np.var(side, ddof=1)) / len(side), len(side) - 1.0) for side in (a, b)]
    parts += [(one.deviation**2, one.degrees_of_freedom) for one in drifts]
    total = sum(variance for variance, _ in parts)
    shares = (
        sum((variance / total) ** 2 / degrees_of_freedom for variance, degrees_of_freedom in parts)
        if total
        else 1
    )
    return Estimate(
        value=value,
        standard_error=math.sqrt(total),
        degrees_of_freedom=1 / shares,
        count=fewer,
        paired=False,
    )
