"""Looking after every window raises no false alarms, and real differences are detected soon."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.statistics.sequential import (
    NORMAL_SHARE,
    PRIOR,
    SKEWNESS_FACTOR,
    confidence_sequence,
    decide,
    log_ratio,
    normal_half_width,
)
from tests.statistics.traces import DIFFERENCES, Numbers, stop

ROWS = 2000


# What a share of at most 5% of ROWS stays below in all but one of a thousand runs.
BOUND = 0.05 + 3.1 * math.sqrt(0.05 * 0.95 / ROWS)


def normal(seed: int, n: int, mean: float = 0.0, spread: float = 1.0) -> Numbers:
    return np.random.default_rng(seed).normal(mean, spread, (ROWS, n))


def ever_out(values: Numbers, truth: float = 0.0) -> float:
    low, high = confidence_sequence(values)
    return float(np.mean(((low > truth) | (high < truth)).any(axis=1)))


def test_bounds_hold_at_all_looks_at_once() -> None:
    assert ever_out(normal(1, 1000)) <= BOUND
    assert ever_out(normal(2, 300, mean=0.3, spread=0.02), truth=0.3) <= BOUND


def test_bounds_hold_for_a_machine_that_drifts_slowly() -> None:
    rng = np.random.default_rng(3)
    steps = rng.normal(0, 0.02, (ROWS, 300 * 8))
    drift = np.cumsum(steps, axis=1).reshape(ROWS, 300, 8)
    values = log_ratio(np.exp(drift + rng.normal(0, 0.1, drift.shape)), b_first=False)
    assert ever_out(values) <= BOUND


LOOKS = 60


@pytest.mark.parametrize("kind", DIFFERENCES)
def test_false_alarms_within_60_looks_are_rare_whatever_the_noise(kind: str) -> None:
    values = DIFFERENCES[kind](np.random.default_rng(11), ROWS, LOOKS)
    assert ever_out(values) <= BOUND


def test_bounds_are_widened_by_skewness_and_correlation() -> None:
    """By as much as loops over single values come to."""
    values = np.array([0.2, 0.6, 0.1, 0.7, 0.2, 0.5, 0.3, 1.4, 2.6, 0.8, 0.4, 0.3, 0.1, 0.5, 0.2])
    n, mean = len(values), sum(values) / len(values)
    squares = sum((value - mean) ** 2 for value in values)
    neighbors = sum((a - mean) * (b - mean) for a, b in zip(values[1:], values[:-1], strict=True))
    p = (n * neighbors / squares + 1) / (n - 3)
    deviation = math.sqrt(squares / (n - 1))
    skewness = sum((value - mean) ** 3 for value in values) / n / deviation**3
    assert skewness > 0
    assert 0 < p < 0.9
    plain = normal_half_width(np.array([15.0]), np.array([squares]), NORMAL_SHARE * 0.05)[0]
    half_width = plain * math.sqrt((1 + p) / (1 - p))
    tail = deviation / (6 * n) + half_width**2 / (3 * deviation)
    low, high = confidence_sequence(values)
    assert low[-1] == pytest.approx(mean - half_width)
    assert high[-1] == pytest.approx(mean + half_width + SKEWNESS_FACTOR * skewness * tail)
    mirrored_low, mirrored_high = confidence_sequence(-values)
    assert mirrored_low[-1] == pytest.approx(-high[-1])
    assert mirrored_high[-1] == pytest.approx(-low[-1])


def test_normal_bounds_invert_the_martingale() -> None:
    """At its bounds the mixture likelihood ratio is 20, worked out by numbers rather than by the
    formula.
    """
    values = np.random.default_rng(4).normal(1, 2, 12)
    squares = ((values - values.mean()) ** 2).sum(keepdims=True)
    bound = values.mean() + normal_half_width(np.array([12.0]), squares, 0.05)[0]
    centered, n, prior = values - bound, 12, PRIOR
    covariance = np.eye(n) + np.ones((n, n)) / prior
    quadratic = centered @ np.linalg.solve(covariance, centered)
    ratio = np.linalg.det(covariance) ** -0.5 * (centered @ centered / quadratic) ** (n / 2)
    assert ratio == pytest.approx(20, rel=1e-6)


def test_few_values_rule_out_nothing() -> None:
    low, high = confidence_sequence(np.array([1.0, 1.1, 1.2, 1.3, 1.4]))
    assert np.isinf(low[:3]).all()
    assert np.isinf(high[:3]).all()
    assert np.isfinite([low[-1], high[-1]]).all()
    assert decide(np.array([1.0, 1.0]), 0.01) == "inconclusive"


PAIR = 0.1  # seconds of measuring with a pair of processes
NOISE = 0.0056 * math.sqrt(2 / PAIR)  # of its log ratio: 0.56% after 2 s


def tries(effect: float, seconds: float) -> Numbers:
    return normal(6, int(seconds / PAIR), mean=math.log1p(-effect), spread=NOISE)


@pytest.mark.parametrize(("effect", "seconds"), [(0.02, 10.0), (0.05, 2.0)])
def test_a_slowdown_is_detected_in_time(effect: float, seconds: float) -> None:
    stops = stop(tries(effect, seconds), min_effect=0.01)
    assert np.mean(stops.sign == -1) >= 0.95
    assert np.mean(stops.sign == 1) == 0


def test_equal_speeds_are_soon_called_the_same_and_seldom_different() -> None:
    stops = stop(tries(0.0, 30.0), min_effect=0.01)
    assert np.mean(np.abs(stops.sign) == 1) <= BOUND
    assert np.mean(stops.sign == 0) > 0.9


def test_too_little_time_is_undecided() -> None:
    stops = stop(tries(0.01, 0.5), min_effect=0.01)
    assert np.isnan(stops.sign).mean() > 0.9
    assert (stops.count[np.isnan(stops.sign)] == 5).all()


@pytest.mark.parametrize(
    ("mean", "spread", "count", "two_sided", "one_sided"),
    [
        (0.05, 0.01, 50, "faster", "faster"),
        (-0.05, 0.01, 50, "slower", "slower"),
        (0.0, 0.001, 50, "same", "same"),
        (0.0, 0.1, 50, "inconclusive", "inconclusive"),
        (0.005, 0.006, 12, "inconclusive", "not slower"),
    ],
)
def test_one_side_is_decided_as_soon_as_a_slowdown_is_excluded_or_certain(
    mean: float, spread: float, count: int, two_sided: str, one_sided: str
) -> None:
    values = mean + spread * np.resize([1.0, -1.0], count)
    assert decide(values, 0.01) == two_sided
    assert decide(values, 0.01, one_sided=True) == one_sided


@pytest.mark.parametrize("noise", [0.01, 0.015])
def test_one_side_takes_fewer_pairs_and_raises_no_more_alarms(noise: float) -> None:
    values = normal(15, LOOKS, spread=noise)
    one, two = stop(values, 0.01, one_sided=True), stop(values, 0.01)
    assert np.mean(one.count) < 0.9 * np.mean(two.count)
    assert np.mean(one.sign == -1) <= BOUND
    lost = stop(values + math.log1p(-0.01), 0.01, one_sided=True)
    assert np.mean(lost.sign >= 0) <= BOUND


def in_turn(windows: int, b_first: bool, slowdown: float, ramp: float) -> Numbers:
    """Return the seconds of windows of A and B, which is slower, on a machine that slows down
    linearly.
    """
    of_b = np.arange(windows) % 2 != b_first
    seconds: Numbers = np.linspace(1, 1 + ramp, windows) * (1 + slowdown * of_b)
    return seconds


@pytest.mark.parametrize("b_first", [False, True])
@pytest.mark.parametrize("windows", [8, 50, 200])
def test_a_linear_drift_cancels(b_first: bool, windows: int) -> None:
    steady, ramp = (in_turn(windows, b_first, 0.02, ramp) for ramp in (0.0, 0.5))
    assert log_ratio(steady, b_first=b_first) == pytest.approx(-math.log(1.02), abs=1e-12)
    ours = log_ratio(ramp, b_first=b_first) + math.log(1.02)
    means = np.log(ramp[b_first::2].mean() / ramp[1 - b_first :: 2].mean()) + math.log(1.02)
    assert abs(ours) < 1e-3
    assert abs(ours) < abs(means) / 10


def test_a_jump_affects_only_the_windows_beside_it() -> None:
    seconds = in_turn(100, False, 0.0, 0.0)
    seconds[41:] *= 2
    assert abs(log_ratio(seconds, b_first=False)) <= math.log(2) / 98 + 1e-12
