"""Traces and differences with a known mean, and how often an interval covers it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Interval = Callable[
    [Numbers], tuple[Numbers, Numbers]
]  # from traces (rows, n): means and half widths

TRUTH = 10.0
# Makes differences of log throughput with a mean of 0, of shape (rows, pairs).
Differences = Callable[[np.random.Generator, int, int], Numbers]


def ar1(rng: np.random.Generator, rows: int, n: int, phi: float) -> Numbers:
    """Return stationary AR(1) traces with mean TRUTH and deviation 1, shape (rows, n)."""
    from scipy.signal import lfilter  # takes a second: only if there is a test of it to run

    shocks = rng.standard_normal((rows, n))
    shocks[:, 1:] *= np.sqrt(1 - phi**2)
    noise: Numbers = lfilter([1.0], [1.0, -phi], shocks, axis=1)
    return TRUTH + noise


def of_arms(draw: Callable[[np.random.Generator, tuple[int, int]], Numbers]) -> Differences:
    """Return differences of two arms whose steps are prolonged by the same distribution."""

    def differences(rng: np.random.Generator, rows: int, pairs: int) -> Numbers:
        a, b = (np.log1p(0.1 * draw(rng, (rows, pairs))) for _ in "ab")
        difference: Numbers = a - b
        return difference

    return differences


def _normal(rng: np.random.Generator, rows: int, pairs: int) -> Numbers:
    return rng.standard_normal((rows, pairs))


def _skewed(rng: np.random.Generator, rows: int, pairs: int) -> Numbers:
    return rng.gamma(2.0, 1.0, (rows, pairs)) - 2.0  # skewness 1.4


def _more_skewed(rng: np.random.Generator, rows: int, pairs: int) -> Numbers:
    return rng.exponential(1.0, (rows, pairs)) - 1.0  # skewness 2


def _most_skewed(rng: np.random.Generator, rows: int, pairs: int) -> Numbers:
    return rng.lognormal(0.0, 0.75, (rows, pairs)) - math.exp(0.75**2 / 2)  # skewness 3.3


def _tails(rng: np.random.Generator, rows: int, pairs: int) -> Numbers:
    """Return differences of arms of which one has a tail three times as long."""
    longer = rng.exponential(3.0, (rows, pairs)) - 3.0
    return rng.exponential(1.0, (rows, pairs)) - 1.0 - longer


def correlated(phi: float) -> Differences:
    """Return differences whose neighbors are correlated, AR(1)."""
    return lambda rng, rows, pairs: ar1(rng, rows, pairs, phi) - TRUTH


DIFFERENCES: dict[str, Differences] = {
    "normal": _normal,
    "lognormal arms": of_arms(lambda rng, shape: rng.lognormal(0.0, 1.0, shape)),
    "exponential arms": of_arms(lambda rng, shape: rng.exponential(1.0, shape)),
    "Pareto arms": of_arms(lambda rng, shape: rng.pareto(1.5, shape)),
    "one arm with a longer tail": _tails,
    "skewed differences (skewness 1.4)": _skewed,
    "more skewed ones (2)": _more_skewed,
    "skewed by 3.3": _most_skewed,
    "neighbors correlated, AR(1) 0.3": correlated(0.3),
}


@dataclass(frozen=True)
class Disturbed:
    """Traces of steps that usually take 1, with a deviation of 5%, and are disturbed."""

    values: Numbers  # (rows, n)
    truth: float  # the mean of the process that they are a part of
    is_seen: NDArray[np.bool_]  # (rows,): whether the disturbance happened in the trace at all


Disturbance = Callable[[np.random.Generator, int, int], Disturbed]
JITTER = 0.05


def stragglers(chance: float, size: float, *, are_alike: bool) -> Disturbance:
    """Return steps of which some take longer, by `size` steps or exponentially distributed."""

    def disturb(rng: np.random.Generator, rows: int, n: int) -> Disturbed:
        is_slow = rng.random((rows, n)) < chance
        sizes = np.full((rows, n), size) if are_alike else rng.exponential(size, (rows, n))
        values = 1 + JITTER * rng.standard_normal((rows, n)) + is_slow * sizes
        return Disturbed(values, 1 + chance * size, np.asarray(is_slow.any(axis=1)))

    return disturb


def two_speeds(dwell: float) -> Disturbance:
    """Return steps under a clock that is 30% slower or not, for `dwell` steps in the mean."""

    def disturb(rng: np.random.Generator, rows: int, n: int) -> Disturbed:
        changes = rng.random((rows, n)) < 1 / dwell
        changes[:, 0] = rng.random(rows) < 0.5
        is_slow = np.cumsum(changes, axis=1) % 2
        values = 1 + 0.3 * is_slow + JITTER * rng.standard_normal((rows, n))
        return Disturbed(values, 1.15, np.asarray(changes[:, 1:].any(axis=1)))

    return disturb


def drift(phi: float, share: float) -> Disturbance:
    """Return steps of which a share of the variance is a slow AR(1) process, the rest jitter."""

    def disturb(rng: np.random.Generator, rows: int, n: int) -> Disturbed:
        slow = np.sqrt(share) * (ar1(rng, rows, n, phi) - TRUTH)
        jitter = np.sqrt(1 - share) * rng.standard_normal((rows, n))
        return Disturbed(1 + JITTER * (slow + jitter), 1.0, np.ones(rows, dtype=bool))

    return disturb


DISTURBANCES: dict[str, Disturbance] = {
    "none": drift(0.0, 0.0),
    "correlated steps, AR(1) 0.8": drift(0.8, 1.0),
    "0.2% stragglers of 11 steps' time": stragglers(0.002, 10.0, are_alike=True),
    "1% stragglers, exponential": stragglers(0.01, 1.0, are_alike=False),
    "two speeds, 50 steps each": two_speeds(50),
    "two speeds, 200 steps each": two_speeds(200),
    "drift, AR(1) 0.99, half the variance": drift(0.99, 0.5),
    "drift, AR(1) 0.995, a fifth of it": drift(0.995, 0.2),
}


def coverage(interval: Interval, traces: Numbers) -> float:
    """Return the share of traces whose interval holds the true mean."""
    mean, half = interval(traces)
    return float(np.mean(np.abs(mean - TRUTH) <= half))
