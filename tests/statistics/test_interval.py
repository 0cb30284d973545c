"""Intervals cover what they claim; seeds are the unit of a cell's mean, however many repeats each has."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.statistics.interval import (
    Interval,
    geometric_mean_interval,
    mean_by_seed,
    mean_interval,
)

TRIES = 4000


def test_interval_by_hand() -> None:
    """Of 1, 2, 3 the deviation is 1; Student's 97.5% quantile of 2 degrees of freedom is 4.302653."""
    interval = mean_interval([1.0, 2.0, 3.0])
    assert (interval.mean, interval.count) == (2.0, 3)
    assert interval.half_width == pytest.approx(4.302653 / 3**0.5, rel=1e-6)


def test_interval_of_a_rate_is_positive_and_symmetric_in_ratios() -> None:
    interval = geometric_mean_interval([1.0, 10_000.0])
    assert interval.mean == pytest.approx(100.0)
    assert interval.bounds is not None
    low, high = interval.bounds
    assert 0 < low < interval.mean
    assert high / interval.mean == pytest.approx(interval.mean / low)
    assert math.log(high / 100) == pytest.approx(12.7062 * math.log(100), rel=1e-4)


def test_intervals_of_one_value_and_of_absurd_ones() -> None:
    assert mean_interval([5.0]) == Interval(5.0, None, 1)
    assert geometric_mean_interval([0.1]) == Interval(0.1, None, 1)
    assert geometric_mean_interval([1e-300, 1e300]).bounds == (0.0, math.inf)
    with pytest.raises(ValueError, match=r"math domain|positive"):
        geometric_mean_interval([1.0, -1.0])


@pytest.mark.parametrize("count", [2, 3, 10])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_interval_covers_the_mean_as_often_as_it_claims(count: int, confidence: float) -> None:
    rows = np.random.default_rng(7).normal(100, 5, (TRIES, count))
    intervals = [mean_interval(row.tolist(), confidence) for row in rows]
    covered = [abs(interval.mean - 100) <= (interval.half_width or 0) for interval in intervals]
    coverage = np.mean(covered)
    assert abs(coverage - confidence) < 4 * np.sqrt(confidence * (1 - confidence) / TRIES)


@pytest.mark.parametrize("seed_spread", [0.0, 1.0, 10.0], ids="{}x the noise".format)
@pytest.mark.parametrize(("seeds", "repeats"), [(2, 5), (3, 3), (5, 1)])
def test_interval_covers_the_mean_over_seeds(seeds: int, repeats: int, seed_spread: float) -> None:
    rng = np.random.default_rng([seeds, repeats])
    seed_effects = rng.normal(0, seed_spread, (TRIES, seeds, 1))
    values = (seed_effects + rng.normal(0, 1, (TRIES, seeds, repeats))).reshape(TRIES, -1)
    seed_of_value = np.repeat(np.arange(seeds), repeats).tolist()
    covers = 0
    for row in values.tolist():
        bounds = mean_interval(list(mean_by_seed(row, seed_of_value).values())).bounds
        covers += bounds is not None and bounds[0] <= 0 <= bounds[1]
    assert covers / TRIES >= 0.93


def test_repeats_of_one_seed_are_one_value() -> None:
    assert mean_by_seed([1.0, 3.0], [7, 7]) == {7: 2.0}
