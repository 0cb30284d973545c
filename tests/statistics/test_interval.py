"""Statistics are tested statistically."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.statistics.interval import Interval, geometric_mean_interval, mean_interval


def test_interval_by_hand() -> None:
    """Of 1, 2, 3 the deviation is 1; Student's 97.5% quantile with 2 degrees of freedom is
    4.302653.
    """
    interval = mean_interval([1.0, 2.0, 3.0])
    assert (interval.mean, interval.count) == (2.0, 3)
    assert interval.half_width == pytest.approx(4.302653 / 3**0.5, rel=1e-6)


def test_one_value_has_no_interval() -> None:
    assert mean_interval([5.0]) == Interval(5.0, None, 1)


def test_interval_of_a_rate_is_positive_and_symmetric_in_ratios() -> None:
    interval = geometric_mean_interval([1.0, 10_000.0])
    assert interval.mean == pytest.approx(100.0)
    assert interval.bounds is not None
    low, high = interval.bounds
    assert 0 < low < interval.mean
    assert high / interval.mean == pytest.approx(interval.mean / low)
    assert math.log(high / 100) == pytest.approx(12.7062 * math.log(100), rel=1e-4)


def test_geometric_interval_of_one_value_and_of_absurd_ones() -> None:
    assert geometric_mean_interval([0.1]) == Interval(0.1, None, 1)
    assert geometric_mean_interval([1e-300, 1e300]).bounds == (0.0, math.inf)
    with pytest.raises(ValueError, match=r"math domain|positive"):
        geometric_mean_interval([1.0, -1.0])


@pytest.mark.parametrize("count", [2, 3, 10])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_interval_covers_the_mean_as_often_as_it_claims(count: int, confidence: float) -> None:
    tries = 4000
    rows = np.random.default_rng(7).normal(100, 5, (tries, count))
    intervals = [mean_interval(row.tolist(), confidence) for row in rows]
    coverage = np.mean(
        [abs(interval.mean - 100) <= (interval.half_width or 0) for interval in intervals]
    )
    assert abs(coverage - confidence) < 4 * np.sqrt(confidence * (1 - confidence) / tries)
