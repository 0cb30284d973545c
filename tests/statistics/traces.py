"""Traces and differences with a known mean, and when a sequence of them decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.statistics.sequential import signs

Numbers = NDArray[np.float64]

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
class Stop:
    """When measuring may end, and the decision then; both of shape (…)."""

    count: NDArray[np.int64]  # values at which the sequence decides, or all of them
    sign: Numbers  # +1 for up, -1 for down, 0 for the same, NaN for undecided


def stop(
    values: Numbers, min_effect: float, alpha: float = 0.05, *, one_sided: bool = False
) -> Stop:
    """Return the first value after which the sequence decides, for rows of log ratios (…, n)."""
    sign = signs(values, min_effect, alpha, one_sided=one_sided)
    is_decided = ~np.isnan(sign)
    # argmax of booleans is the index of the first True.
    index = np.where(is_decided.any(axis=-1), is_decided.argmax(axis=-1), values.shape[-1] - 1)
    return Stop(count=index + 1, sign=np.take_along_axis(sign, index[..., None], -1)[..., 0])
