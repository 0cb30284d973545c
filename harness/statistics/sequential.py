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

from harness.statistics.interval import FEWEST_VALUES

Numbers = NDArray[np.float64]

PRIOR = 0.5  # pseudo-observations of the mixture: tight from about 5 values to some hundred
# The part of the allowed error for noise that is normal. The remainder is for what a few values don't
# show: a tail or a correlation that they can't tell yet.
NORMAL_SHARE = 0.65
SKEWNESS_FACTOR = 2.0  # the skewness of a few values is smaller than that of their distribution
HIGHEST_CORRELATION = 0.9  # of neighbors; estimates are clipped to it
# On B against A; `not slower`: a slowdown that matters is excluded, a speed-up is neither excluded nor
# certain.
SpeedVerdict = Literal["faster", "slower", "same", "not slower", "inconclusive"]


def log_ratio(seconds: Numbers, *, b_first: bool) -> Numbers:
    """Return how much faster B is, as the logarithm of a ratio, shape (…).

    `seconds`, of shape (…, windows), are the times of equal work that A and B did in turn. Every
    window but the first and the last is compared with the mean of its two neighbors, so that a drift
    that is linear over three windows cancels:

        log s_i - (log s_(i-1) + log s_(i+1)) / 2,

    with the opposite sign for windows of B, averaged over all i.
    """
    logs = np.log(seconds)
    neighbors = (logs[..., :-2] + logs[..., 2:]) / 2
    slower = logs[..., 1:-1] - neighbors
    is_a = np.arange(slower.shape[-1]) % 2 != b_first
    signed = np.where(is_a, slower, -slower)
    ratio: Numbers = signed.mean(axis=-1)
    return ratio


def confidence_sequence(values: Numbers, alpha: float = 0.05) -> tuple[Numbers, Numbers]:
    """Return lower and upper bounds of the mean after each value, both of shape (…, n).

    With probability 1 - alpha all of them hold at once, so they may be checked after every value.
    They begin as those of `normal_half_width` at `NORMAL_SHARE` of alpha, for which n independent
    normal values would be enough, and are widened by what the values themselves show. With their
    deviation s, skewness g and lag-1 correlation p, both taken to be worse than they look, and a half
    width h, first for correlated neighbors,

        h <- h sqrt((1 + p) / (1 - p)),    p >= 0,

    then on the side of the longer tail, where a mean of few values is too near to the others, by
    Johnson's correction of the t statistic (1978, doi:10.1080/01621459.1978.10480051),

        h <- h + |g| (s / (6 n) + h^2 / (3 s)).

    No bound of a mean holds for every distribution; how often these do is measured by
    `make bench-statistics` (`harness/guide/measurement.md`).
    """
    n = _counts(values)
    moments = running_moments(values)
    half_width = normal_half_width(n, moments.squares, NORMAL_SHARE * alpha)
    p = _cautious_correlation(n, moments)
    half_width = half_width * np.sqrt((1 + p) / (1 - p))
    variance = moments.squares / np.maximum(n - 1, 1)
    deviation = np.sqrt(variance)
    is_known = np.isfinite(half_width) & (deviation > 0)
    scale = np.where(is_known, deviation, 1.0)
    skewness = SKEWNESS_FACTOR * moments.cubes / n / scale**3
    finite_half_width = np.where(is_known, half_width, 0.0)
    tail = scale / (6 * n) + finite_half_width**2 / (3 * scale)
    allowance = np.where(is_known, skewness * tail, 0.0)
    low = moments.mean - half_width + np.minimum(allowance, 0.0)
    high = moments.mean + half_width + np.maximum(allowance, 0.0)
    return low, high


def _counts(values: Numbers) -> Numbers:
    """Return how many values each row has after each of them: 1, 2, …, shape (n,)."""
    last = values.shape[-1]
    return np.arange(1, last + 1, dtype=np.float64)


def normal_half_width(n: Numbers, squares: Numbers, alpha: float) -> Numbers:
    """Return half the width of a confidence sequence for independent normal values, (…, n).

    Exact for an unknown deviation: it is the t-test martingale under a normal mixture over effect
    sizes and the right Haar prior over the deviation (Wang and Ramdas 2025, arXiv:2310.03722, after
    Lai 1976, doi:10.1214/aos/1176343406). With n values of mean m, squared deviations S from it
    (`squares`), and c = `PRIOR`, the martingale at mu is

        sqrt(c / (n + c)) ((S + n (m - mu)^2) / (S + n (m - mu)^2 c / (n + c)))^(n/2),

    and the interval holds every mu at which it is below 1 / alpha (Ville's inequality). Solved for
    the half width, with b = (sqrt((n + c) / c) / alpha)^(2/n):

        |m - mu| < sqrt(S (b - 1) / (n (1 - b c / (n + c)))),

    infinite where b c / (n + c) is 1 or more, as few values rule nothing out.
    """
    log_prior = 0.5 * np.log((n + PRIOR) / PRIOR)
    log_b = (math.log(1 / alpha) + log_prior) * 2 / n
    b = np.exp(log_b)
    room = 1 - b * PRIOR / (n + PRIOR)
    is_finite = room > 0
    divisor = n * np.where(is_finite, room, 1.0)
    squared_half_width = squares * (b - 1) / divisor
    half_width = np.full(squares.shape, np.inf)
    np.sqrt(squared_half_width, out=half_width, where=is_finite)
    return half_width


@dataclass(frozen=True)
class Moments:
    """Moments of the first 1, 2, … n values of each row; all of shape (…, n)."""

    mean: Numbers
    squares: Numbers  # the sum of squared deviations from the mean
    cubes: Numbers  # the sum of cubed ones
    products: Numbers  # the sum of products of neighbors' deviations


def running_moments(values: Numbers) -> Moments:
    """Return the moments after each value, for rows of values (…, n)."""
    n = _counts(values)
    origin = values[..., :1]
    shifted = values - origin  # against cancellation
    squared = shifted * shifted
    total = np.cumsum(shifted, axis=-1)
    total_squares = np.cumsum(squared, axis=-1)
    total_cubes = np.cumsum(squared * shifted, axis=-1)
    neighbors = np.zeros_like(shifted)
    neighbors[..., 1:] = shifted[..., 1:] * shifted[..., :-1]
    total_products = np.cumsum(neighbors, axis=-1)
    ends = 2 * total - shifted  # the first of the shifted values is 0
    mean = total / n
    squares = total_squares - n * mean**2
    return Moments(
        mean=mean + origin,
        squares=np.maximum(squares, 0.0),
        cubes=total_cubes - 3 * mean * total_squares + 2 * n * mean**2 * mean,
        products=total_products - mean * ends + (n - 1) * mean**2,
    )


def _cautious_correlation(n: Numbers, moments: Moments) -> Numbers:
    """Return the lag-1 correlation after each value, 0 or more, without the estimate's bias.

    Where a mean is fitted, the estimate r of p is biased by about -(1 + 3 p) / n (Kendall 1954,
    doi:10.1093/biomet/41.3-4.403). Solved for p that is (r n + 1) / (n - 3).
    """
    squares = np.maximum(moments.squares, np.finfo(float).tiny)
    estimate = moments.products / squares
    unbiased = (estimate * n + 1) / np.maximum(n - 3, 1)
    clipped = np.clip(unbiased, 0.0, HIGHEST_CORRELATION)
    p: Numbers = np.where(n > 4, clipped, 0.0)
    return p


def signs(
    values: Numbers,
    min_effect: float,
    alpha: float,
    *,
    one_sided: bool,
) -> Numbers:
    """Return the decision of the sequence after each value, for rows of log ratios, both (…, n).

    +1 for up, -1 for down, 0 for the same, NaN for undecided. `min_effect` is the smallest effect of
    interest, a fraction. A change: the interval leaves out 0 and the mean is a ratio of at most 1 -
    `min_effect`, or of at least 1 + `min_effect`. The same: the interval is between these. Fewer
    than three values decide nothing.

    `one_sided` asks only whether the ratio is down by `min_effect` or more. Then 0 says that the
    interval leaves out so low a ratio, however high it may be, and -1 that it leaves out 0 before
    that: the ratio is certainly down, by half of `min_effect` at least where the interval is
    symmetric.
    """
    lower_margin = math.log1p(-min_effect)
    upper_margin = math.log1p(min_effect)
    low, high = confidence_sequence(values, alpha)
    n = _counts(values)
    mean = np.cumsum(values, axis=-1) / n
    is_up = (low > 0) & (mean >= upper_margin)
    if one_sided:
        is_same = low > lower_margin
        is_down = (high < 0) & ~is_same
    else:
        is_same = (low > lower_margin) & (high < upper_margin)
        is_down = (high < 0) & (mean <= lower_margin)
    is_decided = (is_up | is_down | is_same) & (n >= FEWEST_VALUES)
    sign = np.where(is_down, -1.0, 0.0)
    sign = np.where(is_up, 1.0, sign)
    return np.where(is_decided, sign, np.nan)


def decide(
    values: Numbers,
    min_effect: float,
    alpha: float = 0.05,
    *,
    one_sided: bool = False,
) -> SpeedVerdict:
    """Return the decision of `signs` for a single row of log ratios, by the last interval.

    It may differ from that of the first interval that decided; the last one is reported. Of a
    one-sided question, `not slower` says that the interval leaves out a ratio that is down by
    `min_effect`, but not one that is up by as much.
    """
    verdicts: dict[float, SpeedVerdict] = {
        1.0: "faster",
        -1.0: "slower",
        0.0: "same",
    }
    all_signs = signs(values, min_effect, alpha, one_sided=one_sided)
    sign = float(all_signs[-1])
    if sign == 0 and one_sided:
        _, high = confidence_sequence(values, alpha)
        if high[-1] >= math.log1p(min_effect):
            return "not slower"
    return verdicts.get(sign, "inconclusive")
