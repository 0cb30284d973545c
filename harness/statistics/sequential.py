"""Sequential tests: intervals of a mean that hold although they are checked after every value.

A gate measures two arms in turn and checks the result after each pair. An ordinary interval would
sooner or later find a difference by luck; a confidence sequence does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

PRIOR = 0.5  # pseudo-observations of the mixture: tight from about 5 values to some hundred
FEWEST_VALUES = 3  # below that nothing is decided
Decision = Literal["up", "down", "same", "undecided"]


def log_ratio(seconds: Numbers, *, b_first: bool) -> Numbers:
    """Return how much faster B is, as the logarithm of a ratio, shape (…).

    `seconds`, of shape (…, windows), are the times of equal work that A and B did in turn. Every
    window but the first and the last is compared with the mean of its two neighbors, so that a drift
    that is linear over three windows cancels:

        log s_i - (log s_(i-1) + log s_(i+1)) / 2,

    with the opposite sign for windows of B, averaged over all i.
    """
    logs = np.log(seconds)
    slower = logs[..., 1:-1] - (logs[..., :-2] + logs[..., 2:]) / 2
    is_a = np.arange(slower.shape[-1]) % 2 != b_first
    ratio: Numbers = np.where(is_a, slower, -slower).mean(axis=-1)
    return ratio


def confidence_sequence(values: Numbers, alpha: float = 0.05) -> tuple[Numbers, Numbers]:
    """Return lower and upper bounds of the mean after each value, both of shape (…, n).

    With probability 1 - alpha all of them hold at once, so they may be checked after every value.
    For independent normal values with an unknown deviation this is exact: it is the t-test
    martingale under a normal mixture over effect sizes and the right Haar prior over the deviation
    (Wang and Ramdas 2025, arXiv:2310.03722, after Lai 1976, doi:10.1214/aos/1176343406). With n
    values of mean m, squared deviations S from it, and c = `PRIOR`, the martingale at mu is

        sqrt(c / (n + c)) ((S + n (m - mu)^2) / (S + n (m - mu)^2 c / (n + c)))^(n/2),

    and the interval holds every mu at which it is below 1 / alpha (Ville's inequality). Solved for
    the half width, with b = (sqrt((n + c) / c) / alpha)^(2/n):

        |m - mu| < sqrt(S (b - 1) / (n (1 - b c / (n + c)))),

    infinite where b c / (n + c) is 1 or more, as few values rule nothing out.
    """
    n = np.arange(1, values.shape[-1] + 1, dtype=np.float64)
    origin = values[..., :1]
    shifted = values - origin  # against cancellation in S
    mean = np.cumsum(shifted, axis=-1) / n
    squares = np.maximum(np.cumsum(shifted**2, axis=-1) - n * mean**2, 0.0)
    b = np.exp((math.log(1 / alpha) + 0.5 * np.log((n + PRIOR) / PRIOR)) * 2 / n)
    room = 1 - b * PRIOR / (n + PRIOR)
    is_finite = room > 0
    squared_half_width = squares * (b - 1) / (n * np.where(is_finite, room, 1.0))
    half_width = np.full(values.shape, np.inf)
    np.sqrt(squared_half_width, out=half_width, where=is_finite)
    center = mean + origin
    return center - half_width, center + half_width


@dataclass(frozen=True)
class Stop:
    """When measuring may end, and the decision then; both of shape (…)."""

    count: NDArray[np.int64]  # values at which the sequence decides, or all of them
    sign: Numbers  # +1 for up, -1 for down, 0 for the same, NaN for undecided


def signs(values: Numbers, min_effect: float, alpha: float = 0.05) -> Numbers:
    """Return the decision of the sequence after each value, for rows of log ratios, both (…, n).

    +1 for up, -1 for down, 0 for the same, NaN for undecided. `min_effect` is the smallest effect of
    interest, a fraction. A change: the interval leaves out 0 and the mean is a ratio of at most 1 -
    `min_effect`, or of at least 1 + `min_effect`. The same: the interval is between these. Fewer
    than three values decide nothing.
    """
    lower_margin, upper_margin = math.log1p(-min_effect), math.log1p(min_effect)
    low, high = confidence_sequence(values, alpha)
    number = np.arange(1, values.shape[-1] + 1)
    mean = np.cumsum(values, axis=-1) / number
    is_significant = (low > 0) | (high < 0)
    is_large = (mean <= lower_margin) | (mean >= upper_margin)
    is_changed = is_significant & is_large
    is_same = (low > lower_margin) & (high < upper_margin)
    is_decided = (is_changed | is_same) & (number >= FEWEST_VALUES)
    return np.where(is_decided, np.where(is_changed, np.sign(mean), 0.0), np.nan)


def stop(values: Numbers, min_effect: float, alpha: float = 0.05) -> Stop:
    """Return the first value after which the sequence decides, for rows of log ratios (…, n)."""
    sign = signs(values, min_effect, alpha)
    is_decided = ~np.isnan(sign)
    # argmax of booleans is the index of the first True.
    index = np.where(is_decided.any(axis=-1), is_decided.argmax(axis=-1), values.shape[-1] - 1)
    return Stop(count=index + 1, sign=np.take_along_axis(sign, index[..., None], -1)[..., 0])


def decide(values: Numbers, min_effect: float, alpha: float = 0.05) -> Decision:
    """Return the decision of `signs` for a single row of log ratios, by the last interval.

    It may differ from that of the first interval that decided; the last one is reported.
    """
    decisions: dict[float, Decision] = {1.0: "up", -1.0: "down", 0.0: "same"}
    sign = float(signs(values, min_effect, alpha)[-1])
    return decisions.get(sign, "undecided")
