"""Statistics are tested statistically."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from harness.statistics.interval import Interval, mean_interval, share_interval


def test_interval_by_hand() -> None:
    """Three values 1, 2, 3: deviation 1, Student's 97.5% quantile with 2 degrees of freedom 4.302653."""
    found = mean_interval([1.0, 2.0, 3.0])
    assert (found.mean, found.count) == (2.0, 3)
    assert found.half_width == pytest.approx(4.302653 / 3**0.5, rel=1e-6)


def test_of_one_value_nothing_is_known_but_itself() -> None:
    assert mean_interval([5.0]) == Interval(5.0, None, 1)
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])


@pytest.mark.parametrize("count", [2, 3, 10])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_interval_holds_the_truth_as_often_as_it_says(count: int, confidence: float) -> None:
    tries = 4000
    rows = np.random.default_rng(7).normal(100, 5, (tries, count))
    found = [mean_interval(row.tolist(), confidence) for row in rows]
    held = np.mean([abs(one.mean - 100) <= (one.half_width or 0) for one in found])
    assert abs(held - confidence) < 4 * np.sqrt(confidence * (1 - confidence) / tries)


@pytest.mark.parametrize(("count", "of"), [(0, 5), (5, 5), (3, 200), (19, 20)])
def test_bounds_of_a_share(count: int, of: int) -> None:
    bounds = binomtest(count, of).proportion_ci()
    assert share_interval(count, of) == pytest.approx((bounds.low, bounds.high))


@pytest.mark.parametrize(("count", "of"), [(0, 0), (3, 2), (-1, 2)])
def test_no_share(count: int, of: int) -> None:
    with pytest.raises(ValueError, match="tries"):
        share_interval(count, of)
