"""Verdicts checked by hand, and how often they are false."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import nctdtr, stdtrit

from harness.analysis.questions import SPEED
from harness.statistics.estimate import Estimate, between_sessions, paired, unpaired
from harness.statistics.verdict import Metric, MetricVerdict, Question, correct_by_holm, judge

SECONDS = Metric(
    name="seconds", higher_is_better=False, relative=True, min_effect=0.01, better="faster", worse="slower"
)  # fmt: skip
ACCURACY = Metric(name="accuracy", higher_is_better=True, relative=False, min_effect=0.005)


def question(metric: Metric, estimate: Estimate) -> Question:
    return Question(metric=metric, estimate=estimate, mean_a=1.0, mean_b=1.0)


def verdict(metric: Metric, estimate: Estimate) -> MetricVerdict:
    """Return the verdict on a single question."""
    (verdict,) = judge([question(metric, estimate)])
    return verdict


def make_estimate(value: float, error: float, degrees: float = 9) -> Estimate:
    return Estimate(
        value=value, standard_error=error, degrees_of_freedom=degrees, count=10, unit="pairs"
    )


@pytest.mark.parametrize(
    ("value", "error", "label"),
    [
        (0.05, 0.005, "faster"),
        (-0.05, 0.005, "slower"),
        (0.05, 0.05, "inconclusive"),  # large, and not significant
        (0.005, 0.001, "same"),  # significant, and too small to care
        (0.0, 0.001, "same"),
        (0.0, 0.02, "inconclusive"),  # no difference was seen, which shows nothing
        (0.009, 0.001, "inconclusive"),  # may or may not be large enough
    ],
)
def test_a_verdict_needs_significance_and_size(value: float, error: float, label: str) -> None:
    assert verdict(SPEED, make_estimate(value, error)).label == label


def test_every_metric_has_its_direction() -> None:
    up, down = make_estimate(0.1, 0.005), make_estimate(-0.1, 0.005)
    assert [verdict(SPEED, estimate).label for estimate in (up, down)] == ["faster", "slower"]
    assert [verdict(SECONDS, estimate).label for estimate in (up, down)] == ["slower", "faster"]


@pytest.mark.parametrize("estimate", [paired([0.5]), unpaired([1.0], [2.0, 2.0])])
def test_single_values_are_inconclusive(estimate: Estimate) -> None:
    single = verdict(SPEED, estimate)
    assert (single.outcome, single.min_detectable_effect) == ("inconclusive", None)
    assert (single.low, single.high) == (0.0, math.inf)


def test_identical_values_are_the_same_and_a_constant_difference_is_not() -> None:
    assert verdict(SPEED, paired([0.0, 0.0])).label == "same"
    assert verdict(SPEED, paired([0.1, 0.1])).label == "faster"


def test_paired_and_welch_by_hand() -> None:
    """Differences 1, 2, 3: deviation 1. Sides 0, 2 and 1, 2, 3: variances 2 and 1, so that the
    error is sqrt(2/2 + 1/3) and Satterthwaite's degrees of freedom (4/3)^2 / (1/1 + (1/9)/2)."""
    pairs = paired([1.0, 2.0, 3.0])
    assert (pairs.value, pairs.degrees_of_freedom, pairs.count) == (2.0, 2, 3)
    assert pairs.standard_error == pytest.approx(1 / math.sqrt(3))
    assert pairs.interval() == pytest.approx(
        (2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3))
    )
    sides = unpaired([0.0, 2.0], [1.0, 2.0, 3.0])
    assert (sides.value, sides.count) == (1.0, 2)
    assert sides.standard_error == pytest.approx(math.sqrt(4 / 3))
    assert sides.degrees_of_freedom == pytest.approx((16 / 9) / (1 + 1 / 18))


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [([0.01, 0.04, 0.03, 0.5], [0.04, 0.09, 0.09, 0.5]), ([0.7, 0.9], [1.0, 1.0]), ([], [])],
)
def test_corrections_by_hand(p_values: list[float], adjusted: list[float]) -> None:
    assert [test.p for test in correct_by_holm(p_values)] == pytest.approx(adjusted)


@pytest.mark.parametrize(("cells", "pairs"), [(1, 3), (1, 10), (12, 5)])
def test_false_alarms_of_a_whole_sweep_are_bounded(cells: int, pairs: int) -> None:
    tries, alarms = 1200 if cells == 1 else 300, 0
    for family in np.random.default_rng(pairs).normal(0, 0.02, (tries, cells, pairs)):
        judged = judge([question(SPEED, paired(row.tolist())) for row in family])
        alarms += any(verdict.outcome in ("better", "worse") for verdict in judged)
    assert alarms / tries <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / tries)


@pytest.mark.parametrize("pairs", [2, 3, 5, 10])
# Small, where the size decides, large, where significance does, and in between.
@pytest.mark.parametrize("spread", [0.002, 0.01, 0.05])
def test_a_slowdown_of_the_detectable_size_is_detected_four_times_of_five(
    spread: float, pairs: int
) -> None:
    rng, tries = np.random.default_rng(11), 1000
    estimate = make_estimate(0.0, spread / math.sqrt(pairs), pairs - 1)
    effect = estimate.min_detectable_effect(margin=-SPEED.margins[0])
    assert effect is not None
    samples = rng.normal(-effect, spread, (tries, pairs))
    labels = [verdict(SPEED, paired(row.tolist())).label for row in samples]
    assert labels.count("slower") / tries == pytest.approx(0.8, abs=0.08)


@pytest.mark.parametrize("degrees_of_freedom", [1, 2, 4.5, 30])
@pytest.mark.parametrize("alpha", [0.05, 0.05 / 12])
def test_without_a_margin_the_power_is_that_of_the_noncentral_t_distribution(
    degrees_of_freedom: float, alpha: float
) -> None:
    estimate = make_estimate(0.0, 1.0, degrees_of_freedom)
    errors = estimate.min_detectable_effect(alpha)
    critical = stdtrit(degrees_of_freedom, 1 - alpha / 2)
    assert 1 - nctdtr(degrees_of_freedom, errors, critical) == pytest.approx(0.8, abs=1e-3)


def test_values_without_spread_detect_what_matters() -> None:
    assert make_estimate(0.0, 0.0).min_detectable_effect(margin=0.01) == 0.01


def contradicts(judged: MetricVerdict) -> bool:
    """Whether the interval says something else than the verdict beside it, whether it is shown or not."""
    metric = judged.metric
    low, high = judged.low, judged.high
    no_effect = metric.back_transform(0.0)
    smallest, largest = map(metric.back_transform, metric.margins)
    leaves_out_none = low > no_effect or high < no_effect
    matters = not smallest < judged.effect < largest
    is_within = smallest < low and high < largest
    if judged.outcome == "same":
        return not is_within
    if judged.outcome == "inconclusive":
        return is_within or (leaves_out_none and matters)
    is_higher = (judged.outcome == "better") == metric.higher_is_better
    return not (low > no_effect if is_higher else high < no_effect)


def test_a_verdict_never_contradicts_the_interval_beside_it() -> None:
    rng = np.random.default_rng(27)
    outcomes: Counter[str] = Counter()
    for _ in range(400):
        questions: list[Question] = []
        for _ in range(rng.integers(1, 20)):
            metric = (SPEED, SECONDS, ACCURACY)[rng.integers(3)]
            effect = rng.choice([0.0, 0.0, 0.5, 1.0, 3.0, -3.0]) * metric.min_effect
            spread = 10 ** rng.uniform(-1, 1) * metric.min_effect
            a, b = rng.normal([[0.0], [effect]], spread, (2, rng.integers(2, 12)))
            estimate = paired((b - a).tolist())
            if rng.random() < 0.5:
                estimate = unpaired(a.tolist(), b.tolist())
            questions.append(question(metric, estimate))
        for judged in judge(questions):
            assert not contradicts(judged), judged
            outcomes[judged.outcome] += 1
    assert min(outcomes[word] for word in ("better", "worse", "same", "inconclusive")) > 50


def test_a_test_rejects_at_its_level_where_its_adjusted_p_value_does() -> None:
    rng = np.random.default_rng(28)
    for _ in range(300):
        p_values = (rng.random(rng.integers(1, 12)) ** rng.choice([1, 4, 8])).tolist()
        tests = correct_by_holm(p_values)
        assert [test.rejects for test in tests] == [test.p <= 0.05 for test in tests]


def test_the_confidence_of_an_interval_is_that_of_the_test_behind_the_verdict() -> None:
    """Holm compares two p-values of changes with 0.025 and 0.05, and two of equality likewise."""
    estimates = [make_estimate(0.05, 0.005), make_estimate(0.06, 0.01), make_estimate(0.0, 0.001)]
    assert verdict(SPEED, estimates[0]).confidence == pytest.approx(0.95)
    assert verdict(SPEED, estimates[2]).confidence == pytest.approx(0.90)
    judged = judge([question(SPEED, estimate) for estimate in estimates])
    assert [answer.outcome for answer in judged] == ["better", "better", "same"]
    # The first of three tests of each kind is at 0.05 / 3, the second of the changes at 0.05 / 2.
    assert [answer.confidence for answer in judged] == pytest.approx(
        [1 - 0.05 / 3, 1 - 0.05 / 2, 1 - 0.1 / 3]
    )


@pytest.mark.parametrize(
    ("ratio", "label"),
    [(0.905, "inconclusive"), (0.895, "slower"), (1.095, "inconclusive"), (1.105, "faster")],
)
def test_min_effect_is_a_fraction_of_the_first_side_both_ways(ratio: float, label: str) -> None:
    wide = replace(SPEED, min_effect=0.1)
    assert verdict(wide, make_estimate(math.log(ratio), 0.01)).label == label


def test_same_is_false_at_most_one_time_in_twenty() -> None:
    """At a true difference of just the margin, where saying so is easiest."""
    rng, tries = np.random.default_rng(12), 1000
    samples = rng.normal(0.005, 0.002, (tries, 8))
    outcomes = [verdict(ACCURACY, paired(row.tolist())).outcome for row in samples]
    assert outcomes.count("same") / tries <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / tries)


def test_equal_code_on_another_day_is_rarely_told_apart() -> None:
    """The machine moves by 1% between sessions and by 0.3% within one, of five trials each."""
    rng, tries, alarms = np.random.default_rng(14), 1000, 0
    for _ in range(tries):
        days = rng.normal(0, 0.01, (4, 1)) + rng.normal(0, 0.003, (4, 5))
        *baseline, now = days.mean(axis=1).tolist()
        alarms += verdict(SPEED, between_sessions(baseline, [now])).outcome in ("better", "worse")
    assert alarms / tries <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / tries)


def test_fewer_than_three_sessions_show_no_difference() -> None:
    assert between_sessions([0.0, 0.01], [0.5]).standard_error is None
