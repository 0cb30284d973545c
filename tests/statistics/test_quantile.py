"""Quantiles and their bounds by order statistics."""

from __future__ import annotations

import numpy as np
import pytest

from harness.statistics.quantile import quantile


def test_the_bounds_of_a_median_are_those_of_the_tables() -> None:
    """Hahn and Meeker's table has the 40th and the 61st of 100 values."""
    median = quantile(np.arange(1.0, 101.0)[::-1], 0.5)
    assert (median.value, median.low, median.high) == (50.0, 40.0, 61.0)


@pytest.mark.parametrize(("count", "has_bound"), [(367, False), (368, True)])
def test_a_high_quantile_of_few_values_has_no_upper_bound(count: int, has_bound: bool) -> None:
    """0.99 ** 367 is the first power below 2.5%; a bound needs one value more than the binomial's."""
    p99 = quantile(np.arange(float(count)), 0.99)
    assert (p99.high is not None) == has_bound
    assert p99.low is not None


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_bounds_hold_the_true_quantile_as_often_as_they_say(share: float) -> None:
    draws = np.random.default_rng(0).exponential(size=(600, 200))
    truth = -np.log(1 - share)
    covered = 0
    for values in draws:
        bounds = quantile(values, share)
        assert bounds.low is not None
        assert bounds.high is not None
        covered += bounds.low <= truth <= bounds.high
    assert 0.935 <= covered / len(draws) <= 0.99


def test_no_values_are_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        quantile(np.array([]), 0.5)
