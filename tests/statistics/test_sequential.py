"""Looking after every block fools nobody, and real differences are found soon."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import stdtrit

from harness.statistics.sequential import PRIOR, confidence_sequence, decide, log_ratio, stop
from tests.statistics.traces import Numbers

ROWS = 2000


def bound(share: float = 0.05, rows: int = ROWS) -> float:
    """What a share of at most 5% stays below in all but one of a thousand runs."""
    return share + 3.1 * math.sqrt(share * (1 - share) / rows)


def normal(seed: int, n: int, mean: float = 0.0, spread: float = 1.0) -> Numbers:
    return np.random.default_rng(seed).normal(mean, spread, (ROWS, n))


def ever_out(values: Numbers, truth: float = 0.0) -> float:
    low, high = confidence_sequence(values)
    return float(np.mean(((low > truth) | (high < truth)).any(axis=1)))


def test_it_holds_at_all_looks_at_once() -> None:
    assert ever_out(normal(1, 1000)) <= bound()
    assert ever_out(normal(2, 300, mean=0.3, spread=0.02), truth=0.3) <= bound()


def test_students_interval_at_every_look_does_not() -> None:
    values = normal(1, 1000)
    n = np.arange(2, 1001)
    mean = np.cumsum(values, axis=1)[:, 1:] / n
    variance = (np.cumsum(values**2, axis=1)[:, 1:] - n * mean**2) / (n - 1)
    half = stdtrit(n - 1, 0.975) * np.sqrt(variance / n)
    assert np.mean((np.abs(mean) > half).any(axis=1)) > 0.3


@pytest.mark.parametrize("kind", ["heavy tails", "skew", "slow drift"])
def test_it_holds_for_noise_that_is_not_normal(kind: str) -> None:
    rng = np.random.default_rng(3)
    if kind == "heavy tails":
        values = rng.standard_t(3, (ROWS, 300))
    elif kind == "skew":
        values = rng.exponential(1, (ROWS, 300)) - rng.exponential(1, (ROWS, 300))
    else:
        drift = np.cumsum(rng.normal(0, 0.02, (ROWS, 300, 8)).reshape(ROWS, -1), axis=1).reshape(
            ROWS, 300, 8
        )
        values = log_ratio(np.exp(drift + rng.normal(0, 0.1, drift.shape)), b_first=False)
    assert ever_out(values) <= bound()


def test_it_agrees_with_the_martingale_that_it_inverts() -> None:
    """At its bounds the mixture likelihood ratio is 20, worked out by numbers rather than by the formula."""
    values = np.random.default_rng(4).normal(1, 2, 12)
    _, high = confidence_sequence(values)
    centred, n, prior = values - high[-1], 12, PRIOR
    covariance = np.eye(n) + np.ones((n, n)) / prior
    quadratic = centred @ np.linalg.solve(covariance, centred)
    ratio = np.linalg.det(covariance) ** -0.5 * (centred @ centred / quadratic) ** (n / 2)
    assert ratio == pytest.approx(20, rel=1e-6)


def test_few_values_rule_out_nothing() -> None:
    low, high = confidence_sequence(np.array([1.0, 1.1, 1.2, 1.3]))
    assert np.isinf(low[:2]).all()
    assert np.isfinite([low[-1], high[-1]]).all()
    assert decide(np.array([1.0, 1.0]), 0.01) == "undecided"


PAIR = 0.1  # seconds of measuring with a pair of processes
NOISE = 0.0056 * math.sqrt(2 / PAIR)  # of its log ratio: 0.56% after 2 s


def tries(effect: float, seconds: float, seed: int = 6) -> Numbers:
    return normal(seed, int(seconds / PAIR), mean=math.log1p(-effect), spread=NOISE)


@pytest.mark.parametrize(("effect", "seconds"), [(0.02, 10.0), (0.05, 2.0)])
def test_a_slowdown_is_found_in_time(effect: float, seconds: float) -> None:
    found = stop(tries(effect, seconds), min_effect=0.01)
    assert np.mean(found.sign == -1) >= 0.95
    assert np.mean(found.sign == 1) == 0


def test_no_slowdown_is_seldom_called_one_and_soon_known_for_none() -> None:
    found = stop(tries(0.0, 30.0), min_effect=0.01)
    assert np.mean(np.abs(found.sign) == 1) <= bound()
    assert np.mean(found.sign == 0) > 0.9


def test_too_little_time_is_undecided() -> None:
    found = stop(tries(0.01, 0.5), min_effect=0.01)
    assert np.isnan(found.sign).mean() > 0.9
    assert (found.count[np.isnan(found.sign)] == 5).all()


def test_what_it_says_in_words() -> None:
    rng = np.random.default_rng(7)
    assert decide(rng.normal(0.05, 0.01, 50), 0.01) == "up"
    assert decide(rng.normal(-0.05, 0.01, 50), 0.01) == "down"
    assert decide(rng.normal(0, 0.001, 50), 0.01) == "same"
    assert decide(rng.normal(0, 0.1, 50), 0.01) == "undecided"


def in_turn(blocks: int, b_first: bool, slowdown: float, ramp: float) -> Numbers:
    """Seconds of the blocks of A and B, which is slower, on a machine that gets slower by a straight line meanwhile."""
    of_b = np.arange(blocks) % 2 != b_first
    seconds: Numbers = np.linspace(1, 1 + ramp, blocks) * (1 + slowdown * of_b)
    return seconds


@pytest.mark.parametrize("b_first", [False, True])
@pytest.mark.parametrize("blocks", [8, 50, 200])
def test_a_ramp_falls_on_both_sides_alike(b_first: bool, blocks: int) -> None:
    steady, ramp = (in_turn(blocks, b_first, 0.02, ramp) for ramp in (0.0, 0.5))
    assert log_ratio(steady, b_first=b_first) == pytest.approx(-math.log(1.02), abs=1e-12), (
        "B is slower"
    )
    ours = log_ratio(ramp, b_first=b_first) + math.log(1.02)
    means = np.log(ramp[b_first::2].mean() / ramp[1 - b_first :: 2].mean()) + math.log(1.02)
    assert abs(ours) < 1e-3
    assert abs(ours) < abs(means) / 10


def test_a_jump_is_seen_by_the_blocks_beside_it_alone() -> None:
    seconds = in_turn(100, False, 0.0, 0.0)
    seconds[41:] *= 2
    assert abs(log_ratio(seconds, b_first=False)) <= math.log(2) / 98 + 1e-12
