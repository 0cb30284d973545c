"""Estimates of a difference between two sides, with intervals and p-values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

from harness.statistics.interval import student_probability, student_quantile

FEWEST_SESSIONS = 3  # that show how much a machine moves from one to another
POWER = 0.8  # the chance with which the smallest detectable effect is detected


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A difference of B from A, such as that of log throughputs, with its standard error.

    The estimate over its standard error follows Student's t distribution where there is no true
    difference; all p-values and intervals below come from that.
    """

    value: float  # B - A
    standard_error: float | None  # None if it is unknown
    degrees_of_freedom: float  # of the standard error
    count: int  # pairs, trials of the side that has fewer, or sessions of the side that has more
    unit: Literal["pairs", "trials", "sessions"]  # what is counted

    @property
    def paired(self) -> bool:
        """Whether it is a mean of differences, and not a difference of means."""
        return self.unit == "pairs"

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return Student's interval; it is infinite where the standard error is unknown."""
        if self.standard_error is None:
            return -math.inf, math.inf
        quantile = student_quantile(self.degrees_of_freedom, (1 + confidence) / 2)
        half_width = quantile * self.standard_error
        return self.value - half_width, self.value + half_width

    def _p_value(self, distance: float) -> float:
        """Return the p-value of the claim that the truth is on the estimate's side of a bound.

        `distance` is that of the estimate from the bound, positive on the side that is claimed.
        """
        if self.standard_error is None:
            return 1.0
        if self.standard_error == 0:
            return 0.0 if distance > 0 else 1.0
        t = -distance / self.standard_error
        return student_probability(self.degrees_of_freedom, t)

    def p_change(self) -> float:
        """Return the two-sided p-value of the claim that there is a difference."""
        return min(1.0, 2 * self._p_value(abs(self.value)))

    def p_same(self, low: float, high: float) -> float:
        """Return the p-value of the claim that the true difference is between the bounds.

        Two one-sided tests (TOST; Schuirmann 1987, doi:10.1007/BF01068419): the difference is
        shown to be above `low` and to be below `high`, and the weaker of both counts.
        """
        p_above_low = self._p_value(self.value - low)
        p_below_high = self._p_value(high - self.value)
        return max(p_above_low, p_below_high)

    def min_detectable_effect(
        self,
        alpha: float = 0.05,
        margin: float = 0.0,
    ) -> float | None:
        """Return the true difference that is detected with a chance of `POWER`.

        It is detected where the estimate is significant in a two-sided test at `alpha` and at
        least `margin`: by the noncentral t distribution for the one and the normal distribution for
        the other, whichever asks for more. None where the standard error is unknown.
        """
        if self.standard_error is None:
            return None
        if self.standard_error == 0:
            return margin
        from scipy.special import nctdtrinc, ndtri

        critical = student_quantile(self.degrees_of_freedom, 1 - alpha / 2)
        errors = float(nctdtrinc(self.degrees_of_freedom, 1 - POWER, critical))
        significant = errors * self.standard_error
        large_enough = margin + float(ndtri(POWER)) * self.standard_error
        return max(significant, large_enough)


def paired(differences: Sequence[float]) -> Estimate:
    """Return the estimate from B - A of each pair.

    With n pairs of deviation s its standard error is s / sqrt(n), of n - 1 degrees of freedom.
    """
    count = len(differences)
    standard_error = None
    if count > 1:
        standard_error = stdev(differences) / math.sqrt(count)
    return Estimate(
        value=fmean(differences),
        standard_error=standard_error,
        degrees_of_freedom=count - 1,
        count=count,
        unit="pairs",
    )


def certain_zero(count: int) -> Estimate:
    """Return the estimate from pairs that certainly do not differ."""
    return Estimate(
        value=0.0,
        standard_error=0.0,
        degrees_of_freedom=1,
        count=count,
        unit="pairs",
    )


def unpaired(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """Return the estimate from values of both sides, independent and of unequal variance.

    Welch's (1947, doi:10.1093/biomet/34.1-2.28): the variances of the sides' means add up, and the
    Welch-Satterthwaite equation gives their sum's degrees of freedom. With a variance v_i of f_i
    degrees of freedom for each of the parts (s^2 / n of n - 1 for a side with n values of
    deviation s):

        v = v_1 + v_2,    f = v^2 / (v_1^2 / f_1 + v_2^2 / f_2).
    """
    fewer = min(len(a), len(b))
    standard_error = None
    degrees_of_freedom = 0.0
    if fewer > 1:
        total, shares = 0.0, 0.0
        for side in (a, b):
            variance = stdev(side) ** 2 / len(side)
            total += variance
            shares += variance**2 / (len(side) - 1)
        standard_error = math.sqrt(total)
        degrees_of_freedom = total**2 / shares if shares else 1.0
    return Estimate(
        value=fmean(b) - fmean(a),
        standard_error=standard_error,
        degrees_of_freedom=degrees_of_freedom,
        count=fewer,
        unit="trials",
    )


def between_sessions(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """Return the estimate from the means of sessions of measuring, of which a side may have one.

    A machine moves from one session to another by more than within one. So the spread of sessions,
    pooled over both sides, is what a difference is compared with: with n_a and n_b sessions of
    deviation s the standard error is s sqrt(1 / n_a + 1 / n_b). It is unknown unless a side has
    `FEWEST_SESSIONS`.
    """
    squares = 0.0
    for side in (a, b):
        mean = fmean(side)
        squares += math.fsum((value - mean) ** 2 for value in side)
    degrees_of_freedom = len(a) + len(b) - 2
    standard_error = None
    if max(len(a), len(b)) >= FEWEST_SESSIONS:
        variance = squares / degrees_of_freedom
        inverse_counts = 1 / len(a) + 1 / len(b)
        standard_error = math.sqrt(variance * inverse_counts)
    return Estimate(
        value=fmean(b) - fmean(a),
        standard_error=standard_error,
        degrees_of_freedom=degrees_of_freedom,
        count=max(len(a), len(b)),
        unit="sessions",
    )


def wider(between: Estimate, within: Estimate) -> Estimate:
    """Return the estimate from sessions, with the standard error of trials where that is larger.

    Few sessions may happen to be alike although the trials of each differ.
    """
    if between.standard_error is None or within.standard_error is None:
        return between
    if within.standard_error <= between.standard_error:
        return between
    return replace(
        between,
        standard_error=within.standard_error,
        degrees_of_freedom=within.degrees_of_freedom,
    )
