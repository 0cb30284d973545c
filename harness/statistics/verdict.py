"""Verdicts: whether there is a difference, and whether it is large enough to matter.

Many questions are asked at once, so their p-values are corrected for the whole family.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.statistics.estimate import Estimate
from harness.statistics.interval import FEWEST_VALUES, exp

ALPHA = 0.05
Outcome = Literal["better", "worse", "same", "inconclusive"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that two sides are compared by.

    A relative one is estimated as a difference of logarithms and shown as a ratio; any other as a
    difference in its own unit.
    """

    name: str  # as people read it: `samples/s`, `accuracy`
    higher_is_better: bool
    relative: bool  # whether differences are ratios
    min_effect: float  # the smallest effect of interest: a fraction, or in the metric's unit
    better: str = "better"  # what to call a better and a worse value
    worse: str = "worse"

    @property
    def margins(self) -> tuple[float, float]:
        """`min_effect` down and up on the scale of the estimate: 10% is 0.9 and 1.1 times."""
        lower, upper = -self.min_effect, self.min_effect
        if self.relative:
            return math.log1p(lower), math.log1p(upper)
        return lower, upper

    def back_transform(self, value: float) -> float:
        """Return an estimate's value as people read it: a ratio, or the difference itself."""
        return exp(value) if self.relative else value

    def effect_size(self, value: float) -> float:
        """Return the size of an estimated effect: a fraction, or the difference itself."""
        return exp(value) - 1 if self.relative else value


@dataclass(frozen=True, kw_only=True)
class Question:
    """Is B better or worse than A in this metric?"""

    metric: Metric
    estimate: Estimate  # of the difference of B from A, on the metric's scale
    mean_a: float  # in the metric's unit: geometric of a relative one, else arithmetic
    mean_b: float


@dataclass(frozen=True, kw_only=True)
class MetricVerdict(Question):
    """The answer, with p-values that are corrected for the family, and the interval that decided.

    For better and worse, the interval excludes zero effect. For the same, it is within the smallest
    effect of interest. For inconclusive, it is neither, unless the effect is certain but may be too
    small.
    """

    outcome: Outcome  # of B against A
    p_change: float  # of the claim that there is a difference
    p_same: float  # of the claim that it is smaller than the smallest effect of interest
    confidence: float  # of the interval: that of the test that decided, at its corrected level
    low: float  # the lower bound of the effect, as `Metric.back_transform` returns it
    high: float  # and the upper one
    smallest_level: float  # of the family's tests: that of the first one that Holm corrects

    @property
    def min_detectable_effect(self) -> float | None:
        """The change that is detected 80% of the time, as `Metric.effect_size`, at the family's level."""
        margin = max(map(abs, self.metric.margins))
        detectable = self.estimate.min_detectable_effect(self.smallest_level, margin)
        if detectable is None:
            return None
        return self.metric.effect_size(detectable)

    @property
    def effect(self) -> float:
        """The estimate as people read it: a ratio of B to A, or their difference."""
        return self.metric.back_transform(self.estimate.value)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The bounds of the effect, as all that shows a verdict has them; None where they say nothing.

        Two values that were enough for a verdict have bounds that show why.
        """
        if self.estimate.standard_error is None:
            return None
        if self.outcome == "inconclusive" and self.estimate.count < FEWEST_VALUES:
            return None
        return self.low, self.high

    @property
    def label(self) -> str:
        """`faster`, `slower`, `same`, `inconclusive`, or the metric's names for better and worse."""
        if self.outcome == "better":
            return self.metric.better
        if self.outcome == "worse":
            return self.metric.worse
        return self.outcome


def judge(questions: Sequence[Question]) -> list[MetricVerdict]:
    """Return a verdict on each question, with false alarms controlled over all of them.

    Better or worse: the difference is significant and at least as large as the smallest effect of
    interest. Same: it is shown to be smaller than that (TOST). Anything else is inconclusive.
    Holm bounds the chance of any false alarm.
    """
    changes, sames = [], []
    for question in questions:
        changes.append(question.estimate.p_change())
        sames.append(question.estimate.p_same(*question.metric.margins))
    corrected_changes = correct_by_holm(changes)
    corrected_sames = correct_by_holm(sames)
    corrected = zip(questions, corrected_changes, corrected_sames, strict=True)
    verdicts = []
    for question, change, same in corrected:
        smallest_level = ALPHA / len(questions)
        verdicts.append(_verdict(question, change, same, smallest_level))
    return verdicts


def _verdict(
    question: Question,
    change: CorrectedTest,
    same: CorrectedTest,
    smallest_level: float,
) -> MetricVerdict:
    """Return the verdict on a question, from tests that are corrected for its family."""
    outcome = _outcome(question, change, same)
    confidence = _confidence(outcome, change.level, same.level)
    low, high = question.estimate.interval(confidence)
    return MetricVerdict(
        **vars(question),
        outcome=outcome,
        p_change=change.p,
        p_same=same.p,
        confidence=confidence,
        low=question.metric.back_transform(low),
        high=question.metric.back_transform(high),
        smallest_level=smallest_level,
    )


def _confidence(outcome: Outcome, change_level: float, same_level: float) -> float:
    """Return the confidence of the interval that belongs to an outcome.

    TOST at level a finds the same exactly if the interval of confidence 1 - 2a is within the
    margins. For inconclusive, the wider of both intervals shows why neither test rejects.
    """
    if outcome in ("better", "worse"):
        return 1 - change_level
    if outcome == "same":
        return 1 - 2 * same_level
    return 1 - min(change_level, 2 * same_level)


def _outcome(question: Question, change: CorrectedTest, same: CorrectedTest) -> Outcome:
    """Return the outcome by the p-values and the size of the effect.

    A significant effect that is too small to matter is neither better nor worse; it is the same
    only if it is shown to be too small, and inconclusive otherwise. A difference of zero without
    any spread, as between equal bits, is the same.
    """
    metric, estimate = question.metric, question.estimate
    lower_margin, upper_margin = metric.margins
    matters = not lower_margin < estimate.value < upper_margin
    if change.rejects and matters:
        is_higher = estimate.value > 0
        return "better" if is_higher == metric.higher_is_better else "worse"
    is_identical = estimate.standard_error == 0 and estimate.value == 0
    if same.rejects or is_identical:
        return "same"
    return "inconclusive"


@dataclass(frozen=True, kw_only=True)
class CorrectedTest:
    """One of many tests, corrected for the others."""

    p: float  # adjusted
    # The raw p-value is compared with it: an uncorrected test at this level rejects exactly if the
    # corrected test does.
    level: float
    rejects: bool


def correct_by_holm(p_values: Sequence[float]) -> list[CorrectedTest]:
    """Return tests of which at most `ALPHA` of all families have any false rejection.

    Holm's step-down procedure (1979, https://www.jstor.org/stable/4615733): of n p-values in
    ascending order,

        adjusted p_(i) = max over j <= i of min(1, (n - j + 1) p_(j)).

    The i-th smallest is compared with ALPHA / (n - i + 1), up to the first that is not rejected; all
    larger ones stay at its level.
    """
    count = len(p_values)
    ascending = sorted(range(count), key=p_values.__getitem__)
    tests: dict[int, CorrectedTest] = {}
    adjusted, level, has_accepted = 0.0, ALPHA, False
    for position, index in enumerate(ascending):
        p = p_values[index]
        remaining = count - position
        adjusted = max(adjusted, min(1.0, remaining * p))
        if not has_accepted:
            level = ALPHA / remaining
            has_accepted = p > level
        tests[index] = CorrectedTest(
            p=adjusted,
            level=level,
            rejects=not has_accepted,
        )
    return [tests[index] for index in range(count)]
