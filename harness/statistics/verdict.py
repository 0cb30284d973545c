"""Verdicts: whether a difference is there, and whether it is large enough to care, over a family of questions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.statistics.estimate import Estimate

ALPHA = 0.05
Correction = Literal["holm", "bh"]
Outcome = Literal["better", "worse", "same", "inconclusive"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that sides are held against each other by.

    A relative one is estimated as a difference of logarithms and told as a ratio; others as a difference in their own
    unit. `min_effect` is the smallest effect of interest: a fraction, or so many of the unit.
    """

    name: str
    higher_is_better: bool
    relative: bool
    min_effect: float
    better: str = "better"
    worse: str = "worse"

    @property
    def margins(self) -> tuple[float, float]:
        """`min_effect` on the scale of the estimate, down and up: 10% slower is 0.9 times, 10% faster 1.1 times."""
        if self.relative:
            return math.log1p(-self.min_effect), math.log1p(self.min_effect)
        return -self.min_effect, self.min_effect

    def back_transform(self, value: float) -> float:
        """An estimate's value as people read it: a ratio, or the difference itself."""
        return _exp(value) if self.relative else value

    def effect_size(self, value: float) -> float:
        """The size of an effect: a fraction, or the difference itself."""
        return _exp(value) - 1 if self.relative else value


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


@dataclass(frozen=True, kw_only=True)
class Question:
    """Is B better or worse than A in this metric?"""

    metric: Metric
    estimate: Estimate


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer. p-values are corrected for the family; the interval is of this question alone."""

    question: Question
    outcome: Outcome
    p_change: float
    p_same: float
    low: float  # as `Metric.back_transform`
    high: float
    min_detectable_effect: float | None  # as `Metric.effect_size`, at the family's level

    @property
    def metric(self) -> Metric:
        """The metric that the question is about."""
        return self.question.metric

    @property
    def estimate(self) -> Estimate:
        """The estimated difference of B from A."""
        return self.question.estimate

    @property
    def effect(self) -> float:
        """The estimate as people read it: a ratio of B to A, or their difference."""
        return self.metric.back_transform(self.estimate.value)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The bounds of the effect; None where too few values give none."""
        if self.estimate.standard_error is None:
            return None
        return self.low, self.high

    @property
    def label(self) -> str:
        """`faster`, `slower`, `same`, `inconclusive`, or what the metric says for better and worse."""
        metric = self.question.metric
        return {"better": metric.better, "worse": metric.worse}.get(self.outcome, self.outcome)


def judge(
    questions: Sequence[Question], *, alpha: float = ALPHA, correction: Correction = "holm"
) -> list[Verdict]:
    """A verdict on each question, with false alarms controlled over all of them.

    Better or worse: the difference is significant and at least as large as the smallest effect of interest.
    Same: it is shown to be smaller than that (TOST). Anything else is inconclusive.
    Holm bounds the chance of any false alarm, Benjamini-Hochberg the share of false ones among all alarms.
    """
    adjust = {"holm": holm, "bh": benjamini_hochberg}[correction]
    changes = adjust([one.estimate.p_change() for one in questions])
    sames = adjust([one.estimate.p_same(*one.metric.margins) for one in questions])
    return [
        _verdict(question, change, same, alpha, len(questions))
        for question, change, same in zip(questions, changes, sames, strict=True)
    ]


def _verdict(
    question: Question, p_change: float, p_same: float, alpha: float, family: int
) -> Verdict:
    metric, estimate = question.metric, question.estimate
    least, most = metric.margins
    outcome: Outcome = "inconclusive"
    if p_change <= alpha and not least < estimate.value < most:
        outcome = "better" if (estimate.value > 0) == metric.higher_is_better else "worse"
    elif p_same <= alpha or (estimate.standard_error == 0 and estimate.value == 0):
        outcome = "same"
    low, high = (metric.back_transform(bound) for bound in estimate.interval(1 - alpha))
    found = estimate.min_detectable_effect(alpha / family, max(-least, most))
    min_detectable_effect = None if found is None else metric.effect_size(found)
    return Verdict(
        question=question,
        outcome=outcome,
        p_change=p_change,
        p_same=p_same,
        low=low,
        high=high,
        min_detectable_effect=min_detectable_effect,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values that bound the chance of any false rejection (Holm 1979, https://www.jstor.org/stable/4615733)."""
    ordered, places = _ordered(p_values)
    count = len(ordered)
    adjusted = np.maximum.accumulate(ordered * (count - np.arange(count)))
    return _back(np.minimum(adjusted, 1.0), places)


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values that bound the expected share of false rejections (Benjamini and Hochberg 1995,
    doi:10.1111/j.2517-6161.1995.tb02031.x)."""
    ordered, places = _ordered(p_values)
    count = len(ordered)
    raised = ordered * count / np.arange(1, count + 1)
    return _back(np.minimum(np.minimum.accumulate(raised[::-1])[::-1], 1.0), places)


def _ordered(p_values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    values = np.asarray(p_values, dtype=np.float64)
    places = np.argsort(values, kind="stable")
    return values[places], places


def _back(adjusted: np.ndarray, places: np.ndarray) -> list[float]:
    found = np.empty_like(adjusted)
    found[places] = adjusted
    return [float(value) for value in found]
