"""Trials are the unit: however many steps each has, they don't count as trials."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.statistics.interval import mean_interval
from harness.statistics.trace import trace_mean
from harness.statistics.trials import spread_of_trials
from tests.statistics.traces import TRUTH, Numbers, ar1

WITHIN, BETWEEN = 1.0, 0.5


def sweep(seed: int, tries: int, trials: int) -> Numbers:
    """Return the steps of trials that differ from each other, shape (tries, trials, 200)."""
    rng = np.random.default_rng(seed)
    steps = ar1(rng, tries * trials, 200, 0.5).reshape(tries, trials, 200)
    return TRUTH + WITHIN * (steps - TRUTH) + rng.normal(0, BETWEEN, (tries, trials, 1))


@pytest.mark.parametrize("trials", [2, 3, 8])
def test_interval_covers_the_cells_mean_as_often_as_it_claims(trials: int) -> None:
    tries = 2000
    traces = trace_mean(sweep(trials, tries, trials))
    intervals = [mean_interval(row.tolist()) for row in traces.mean]
    coverage = np.mean(
        [abs(interval.mean - TRUTH) <= (interval.half_width or 0) for interval in intervals]
    )
    assert abs(coverage - 0.95) < 4 * math.sqrt(0.95 * 0.05 / tries)


def test_counting_steps_as_trials_would_not_cover_it() -> None:
    together = trace_mean(sweep(3, 2000, 3).reshape(2000, -1))
    assert np.mean(np.abs(together.mean - TRUTH) <= together.half_width()) < 0.75


def test_spread_within_and_between_trials_is_separated() -> None:
    traces = trace_mean(sweep(4, 1, 400))
    spread = spread_of_trials(traces.mean[0].tolist(), traces.standard_error[0].tolist())
    # The mean of 200 AR(1) steps with correlation 0.5 has the deviation sqrt((1 + 0.5) / (1 - 0.5)
    # / 200).
    assert spread.within == pytest.approx(math.sqrt(3 / 200), rel=0.15)
    assert spread.between == pytest.approx(BETWEEN, rel=0.15)


def test_unknown_parts_of_the_spread_are_none() -> None:
    single = spread_of_trials([5.0], [0.1])
    assert (single.within, single.between) == (0.1, None)
    without_error = spread_of_trials([5.0, 6.0], [0.1, None])
    assert (without_error.within, without_error.between) == (None, None)
