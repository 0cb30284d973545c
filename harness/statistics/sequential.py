"""Looking while measuring: paired blocks in random order, and an interval that holds however often it is looked at."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

PRIOR = 0.5  # pseudo-observations of the mixture: 0.5 makes the interval tight from about 5 values to some hundred
Decision = Literal["up", "down", "same", "undecided"]


def log_ratio(seconds: Numbers, *, b_first: bool) -> Numbers:
    """How much faster B is, as the log of a ratio, from the times of equal work (…, blocks) that A and B did in turn.

    Every block but the first and the last is compared with the mean of the two beside it, so that a drift that is a
    straight line over three blocks cancels.
    """
    logs = np.log(seconds)
    slower = logs[..., 1:-1] - (logs[..., :-2] + logs[..., 2:]) / 2
    of_a = np.arange(slower.shape[-1]) % 2 != b_first
    ratio: Numbers = np.where(of_a, slower, -slower).mean(axis=-1)
    return ratio


def confidence_sequence(values: Numbers, alpha: float = 0.05) -> tuple[Numbers, Numbers]:
    """Lower and upper bounds of the mean after each value (…, n): with probability 1 - alpha all of them hold at once.

    The t-test martingale under a normal mixture over effect sizes and the right Haar prior over the deviation
    (Wang and Ramdas 2025, arXiv:2310.03722, after Lai 1976, doi:10.1214/aos/1176343406), exact for independent normal
    values with an unknown deviation. With n values of mean m, squared deviations S about it, and c = `PRIOR`, the
    martingale at mu is

        sqrt(c / (n + c)) ((S + n (m - mu)^2) / (S + n (m - mu)^2 c / (n + c)))^(n/2),

    and the interval holds every mu at which it is below 1 / alpha (Ville's inequality). Infinite where few values rule
    out nothing.
    """
    n = np.arange(1, values.shape[-1] + 1, dtype=np.float64)
    shifted = values - values[..., :1]  # against cancellation in S
    mean = np.cumsum(shifted, axis=-1) / n
    spread = np.maximum(np.cumsum(shifted**2, axis=-1) - n * mean**2, 0.0)
    bound = np.exp((math.log(1 / alpha) + 0.5 * np.log((n + PRIOR) / PRIOR)) * 2 / n)
    room = 1 - bound * PRIOR / (n + PRIOR)
    half = np.full(values.shape, np.inf)
    np.sqrt(spread * (bound - 1) / (n * np.where(room > 0, room, 1.0)), out=half, where=room > 0)
    centre = mean + values[..., :1]
    return centre - half, centre + half


@dataclass(frozen=True)
class Stop:
    """Where measuring may end: after `count` values, (…), and what is known then as +1, -1, 0 or NaN if undecided."""

    count: NDArray[np.int64]
    sign: Numbers


def stop(values: Numbers, min_effect: float, alpha: float = 0.05) -> Stop:
    """The first look at which the sequence decides, for rows of log ratios (…, n) and the smallest effect of interest,
    a fraction.

    A change: the interval leaves out 0 and the mean is a ratio of at most 1 - `min_effect`, or at
    least 1 + `min_effect`.
    The same: the interval lies between these. Nothing is decided by fewer than three values.
    """
    least, most = math.log1p(-min_effect), math.log1p(min_effect)
    low, high = confidence_sequence(values, alpha)
    mean = np.cumsum(values, axis=-1) / np.arange(1, values.shape[-1] + 1)
    enough = np.arange(1, values.shape[-1] + 1) >= 3
    changed = ((low > 0) | (high < 0)) & ((mean <= least) | (mean >= most))
    same = (low > least) & (high < most)
    decided = (changed | same) & enough
    any_ = decided.any(axis=-1)
    place = np.where(any_, decided.argmax(axis=-1), values.shape[-1] - 1)
    at = place[..., None]
    sign = np.where(
        np.take_along_axis(changed, at, -1), np.sign(np.take_along_axis(mean, at, -1)), 0.0
    )[..., 0]
    return Stop(count=place + 1, sign=np.where(any_, sign, np.nan))


def decide(values: Numbers, min_effect: float, alpha: float = 0.05) -> Decision:
    """What one row of log ratios tells so far; `stop` says how."""
    sign = float(stop(values, min_effect, alpha).sign)
    words: dict[float, Decision] = {1.0: "up", -1.0: "down", 0.0: "same"}
    return words.get(sign, "undecided")
