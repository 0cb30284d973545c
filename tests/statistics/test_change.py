"""Change points are found soon, and equal nights raise no alarm however often somebody looks."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest

from harness.statistics.change import (
    Numbers,
    find_changes,
    mean_evidence,
    rank_evidence,
)

MIN_EFFECT = 0.01


def stepped(noise: float, *steps: tuple[int, float], count: int = 60, seed: int = 0) -> Numbers:
    """Return a series that goes up by each step, from the position where it is."""
    values = noise * np.random.default_rng(seed).standard_normal(count)
    for position, size in steps:
        values[position:] += size
    return values


def test_a_step_has_its_place_its_size_and_the_night_it_was_seen() -> None:
    (change,) = find_changes(list(stepped(0.005, (30, -0.02))), 18_250, MIN_EFFECT)
    assert change.earliest <= 30 <= change.latest
    low, high = change.estimate.interval(0.99)
    assert low < -0.02 < high < 0
    assert 30 <= change.seen < 40


@pytest.mark.parametrize(("count", "size"), [(730, 0.1), (360, 0.7)])
def test_a_change_stays_where_it_is_however_long_its_history_gets(count: int, size: float) -> None:
    """Its evidence is more than a number can hold."""
    place = count // 2
    values = stepped(0.01, (place, -size), count=count)
    (change,) = find_changes(list(values), 365, MIN_EFFECT)
    assert (change.earliest, change.start, change.latest) == (place, place, place)


def test_steps_both_ways_are_found_one_by_one() -> None:
    values = stepped(0.004, (20, 0.03), (40, -0.03))
    rise, fall = find_changes(list(values), 18_250, MIN_EFFECT)
    assert (rise.start, fall.start) == (20, 40)
    assert rise.estimate.value > 0 > fall.estimate.value


def test_later_nights_change_no_decision_before_them() -> None:
    values = list(stepped(0.006, (20, -0.03), (45, -0.03)))
    seen = [change.seen for change in find_changes(values, 1000, MIN_EFFECT)]
    for count in range(1, len(values) + 1):
        until = [change.seen for change in find_changes(values[:count], 1000, MIN_EFFECT)]
        assert until == [night for night in seen if night < count]


def test_a_change_that_does_not_matter_is_none() -> None:
    assert find_changes(list(stepped(0.0005, (30, 0.005))), 100, MIN_EFFECT) == []


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "skewed", "correlated"])
def test_equal_nights_raise_hardly_an_alarm(kind: str) -> None:
    """A threshold of 1,000 nights allows 9 alarms in 25 years."""
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(25):
        values = rng.standard_normal(365)
        if kind == "heavy tails":
            values = rng.standard_t(2, 365)
        if kind == "skewed":
            values = np.exp(values)
        if kind == "correlated":
            for night in range(1, 365):
                values[night] = 0.3 * values[night - 1] + math.sqrt(0.91) * values[night]
        alarms += len(find_changes(list(values), 1000, 0.0))
    assert alarms <= 9


def test_one_disturbed_night_is_no_change() -> None:
    values = stepped(0.005)
    values[30] -= 0.5
    assert find_changes(list(values), 100, MIN_EFFECT) == []


def test_evidence_by_ranks_is_1_over_all_orders() -> None:
    total = sum(rank_evidence(np.array(order, dtype=float)) for order in permutations(range(6)))
    assert total / math.factorial(6) == pytest.approx(np.ones(5))


def test_evidence_by_means_is_1_on_average() -> None:
    values = np.random.default_rng(1).standard_normal((10_000, 6))
    evidence = np.array([mean_evidence(row) for row in values])
    standard_error = evidence.std(axis=0) / math.sqrt(len(values))
    assert np.all(np.abs(evidence.mean(axis=0) - 1) < 4 * standard_error)


def test_evidence_does_not_depend_on_the_unit() -> None:
    values = stepped(1.0, (10, 1.0), count=20)
    assert mean_evidence(5 + 3 * values) == pytest.approx(mean_evidence(values))
    assert rank_evidence(np.exp(values)) == pytest.approx(rank_evidence(values))


def test_equal_values_are_no_evidence() -> None:
    assert mean_evidence(np.ones(5)) == pytest.approx(np.ones(4))
    assert find_changes([1.0] * 50, 100, 0.0) == []
