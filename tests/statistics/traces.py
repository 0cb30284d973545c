"""Traces with a known mean, and how often an interval covers it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

Numbers = NDArray[np.float64]
Interval = Callable[
    [Numbers], tuple[Numbers, Numbers]
]  # from traces (rows, n): means and half widths

TRUTH = 10.0


def ar1(rng: np.random.Generator, rows: int, n: int, phi: float) -> Numbers:
    """Return stationary AR(1) traces with mean TRUTH and deviation 1, shape (rows, n)."""
    shocks = rng.standard_normal((rows, n))
    shocks[:, 1:] *= np.sqrt(1 - phi**2)
    noise: Numbers = lfilter([1.0], [1.0, -phi], shocks, axis=1)
    return TRUTH + noise


def coverage(interval: Interval, traces: Numbers) -> float:
    """Return the share of traces whose interval holds the true mean."""
    mean, half = interval(traces)
    return float(np.mean(np.abs(mean - TRUTH) <= half))
