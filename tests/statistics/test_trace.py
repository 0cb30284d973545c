"""The interval of a trace's mean covers it as often as it claims; those of peers do not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import stdtrit

from harness.statistics.trace import FEWEST, batch_means, trace_mean
from tests.statistics.traces import TRUTH, Numbers, ar1, coverage


def ours(traces: Numbers) -> tuple[Numbers, Numbers]:
    means = trace_mean(traces)
    return means.mean, means.half_width()


def milabench(traces: Numbers) -> tuple[Numbers, Numbers]:
    """Drop the smallest and the largest, and take the others for independent."""
    trimmed = np.sort(traces, axis=1)[:, 1:-1]
    return trimmed.mean(1), 1.96 * trimmed.std(1, ddof=1) / np.sqrt(trimmed.shape[1])


def pytest_benchmark(traces: Numbers) -> tuple[Numbers, Numbers]:
    """Return the interval that readers make of the mean and the deviation of the rounds."""
    n = traces.shape[1]
    return traces.mean(1), stdtrit(n - 1, 0.975) * traces.std(1, ddof=1) / np.sqrt(n)


ROWS = 4_000
SLACK = 3 * np.sqrt(0.05 * 0.95 / ROWS)  # three standard errors of a coverage
HONEST = (0.94 - SLACK, 0.96 + SLACK)
PHIS = [0.0, 0.5, 0.8, 0.9, 0.95]


def traces(n: int, phi: float, rows: int = ROWS) -> Numbers:
    return ar1(np.random.default_rng([n, round(100 * phi)]), rows, n, phi)


@pytest.mark.parametrize("phi", PHIS)
@pytest.mark.parametrize("n", [150, 300, 1000, 2000])
def test_interval_covers_the_mean_as_often_as_it_claims(n: int, phi: float) -> None:
    assert HONEST[0] <= coverage(ours, traces(n, phi)) <= HONEST[1]


@pytest.mark.parametrize(
    ("phi", "at_least"), [(0.0, 0.94), (0.5, 0.94), (0.8, 0.94), (0.9, 0.91), (0.95, 0.87)]
)
def test_short_correlated_traces_fall_short_by_no_more_than_documented(
    phi: float, at_least: float
) -> None:
    assert coverage(ours, traces(60, phi)) >= at_least - SLACK


@pytest.mark.parametrize("n", [60, 300, 2000])
def test_intervals_of_peers_do_not_cover_it(n: int) -> None:
    """By so much that a quarter of the traces shows it."""
    for phi, at_most in ((0.5, 0.80), (0.8, 0.60), (0.95, 0.30)):
        few_traces = traces(n, phi, ROWS // 4)
        assert coverage(milabench, few_traces) < at_most
        assert coverage(pytest_benchmark, few_traces) < at_most


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("n", [150, 1000])
def test_a_linear_drift_is_no_error_of_the_mean(n: int, phi: float) -> None:
    drifting = traces(n, phi) + np.linspace(-2, 2, n)
    assert HONEST[0] <= coverage(ours, drifting) <= HONEST[1]
    assert np.median(ours(drifting)[1]) == pytest.approx(
        np.median(ours(traces(n, phi))[1]), rel=0.02
    )
    if phi == 0:
        assert (
            coverage(pytest_benchmark, drifting) > 0.99
        )  # takes the drift for noise, and is far too wide


def test_a_periodic_drift_widens_the_interval() -> None:
    phase = np.random.default_rng(1).uniform(0, 2 * np.pi, (ROWS, 1))
    waves = np.sin(2 * np.pi * 5.5 * np.arange(600) / 600 + phase)
    assert coverage(ours, traces(600, 0.3) + waves) >= HONEST[0]


def test_slow_drift_under_jitter_is_covered_in_long_traces_only() -> None:
    """A quarter of the variance is slow; the rest is white and hides it from short traces."""

    def mixed(n: int) -> Numbers:
        jitter = np.random.default_rng(2).standard_normal((ROWS, n))
        return np.asarray(TRUTH + 0.5 * (traces(n, 0.95) - TRUTH) + np.sqrt(0.75) * jitter)

    short, long = mixed(300), mixed(2000)
    assert HONEST[0] <= coverage(ours, long) <= HONEST[1]
    assert 0.8 < coverage(ours, short) < 0.92
    assert coverage(pytest_benchmark, long) < 0.65
    assert coverage(pytest_benchmark, short) < 0.65


def test_rare_stragglers_do_no_harm_in_a_long_trace() -> None:
    rng = np.random.default_rng(3)
    slow = (rng.random((ROWS, 2000)) < 0.05) * rng.exponential(3, (ROWS, 2000))
    assert HONEST[0] <= coverage(ours, traces(2000, 0.3) + slow - 0.15) <= HONEST[1]


def test_white_noise_has_nearly_the_ordinary_width() -> None:
    means = trace_mean(traces(1000, 0.0))
    assert np.median(means.half_width()) == pytest.approx(1.96 / np.sqrt(1000), rel=0.12)
    assert np.median(means.standard_error) == pytest.approx(1 / np.sqrt(1000), rel=0.08)


def test_few_values_have_no_error_and_constants_an_error_of_zero() -> None:
    few = trace_mean(np.ones((2, FEWEST - 1)))
    assert np.isnan(few.standard_error).all()
    assert (few.mean == 1).all()
    assert trace_mean(np.ones(FEWEST)).standard_error == pytest.approx(0)


def test_batches_are_the_last_values() -> None:
    assert batch_means(np.arange(7.0), 3).tolist() == [1.5, 3.5, 5.5]
    assert batch_means(np.arange(5.0), 3).tolist() == [0, 1, 2, 3, 4]
