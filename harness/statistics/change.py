"""Change points in a series that grows by a value a night: whether, when and by how much it changed.

Two detectors look at every new value, and a change counts once both have seen it: one by means, which
is the sooner one, and one by ranks, which holds whatever the distribution is. Each is a sum of
e-values, one for each value with which a change could have begun. Without a change, such a sum grows by
1 a value in expectation, so that it reaches a threshold c after c values or more on average, however
often somebody looks (Shin, Ramdas and Rinaldo 2023, arXiv:2203.03532).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.statistics.estimate import Estimate, unpaired

Numbers = NDArray[np.float64]

EFFECT_SIZE = 1.0  # that the detector by means expects, in standard deviations
ODDS = (2.0, 5.0, 30.0)  # that the detector by ranks expects; see `rank_evidence`
FEWEST_VALUES = 2  # before a change and after it, so that both have a spread
HIGHEST_CORRELATION = 0.9  # of neighbors; estimates are clipped to it
LOCATION_CONFIDENCE = 0.95
LARGEST_LOG = 600.0  # of an e-value, so that their sum is finite


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of a series, by the positions of its values, which count from 0."""

    start: int  # the most likely first value after it
    earliest: int  # that value is between these with `LOCATION_CONFIDENCE`
    latest: int
    seen: int  # the value at which it became certain
    estimate: Estimate  # of the mean after it minus the mean before it


def find_changes(values: Sequence[float], threshold: float, min_effect: float) -> list[Change]:
    """Return the changes of a series in their order.

    They are those that somebody would have found who looked after each value: a value that is added
    leaves earlier decisions as they are. Values are on a scale on which `min_effect` is the smallest
    change that matters, such as logarithms of throughput. Without a change, a false one is found once in
    `threshold` values or more on average. How often, also where neighbors are correlated, is measured
    by `make bench-statistics`.
    """
    series = np.asarray(values, dtype=np.float64)
    starts, seen = [0], []
    for count in range(1, len(series) + 1):
        start = _certain_start(series[starts[-1] : count], threshold, min_effect)
        if start is not None:
            starts.append(starts[-1] + start)
            seen.append(count - 1)
    return _refined(series, starts, seen)


def _certain_start(segment: Numbers, threshold: float, min_effect: float) -> int | None:
    """Return where a segment changed, None unless both detectors are certain that it did.

    Where neighbors are correlated, they look at what is new in each value (`_innovations`).
    """
    if len(segment) < 2 * FEWEST_VALUES:
        return None
    evidence = mean_evidence(segment)
    if evidence.sum() < threshold:
        return None
    start = _most_likely_start(evidence)
    change = segment[start:].mean() - segment[:start].mean()
    if abs(change) < min_effect:
        return None
    innovations = _innovations(segment, start)
    if mean_evidence(innovations).sum() < threshold:
        return None
    # Two directions share the allowed error.
    by_ranks = rank_evidence(innovations if change > 0 else -innovations).sum() / 2
    return start if by_ranks >= threshold else None


def mean_evidence(segment: Numbers) -> Numbers:
    """Return the e-value of a change after 1, 2, … n - 1 values, for normal ones, shape (n - 1,).

    It is the Bayes factor of a change by d standard deviations, with d normal around 0 with a deviation
    of t = `EFFECT_SIZE`, to none (Gönen and others 2005, doi:10.1198/000313005X55233). The right Haar
    prior on mean and deviation makes it a martingale as values are added (Pérez-Ortiz and others 2024,
    doi:10.1214/24-AOS2394). With k values before, m after, a difference D of their means, the sum S of
    all squared deviations and q = k m / (k + m), it is

        (1 + t^2 q)^(-1/2) (1 - t^2 q / (1 + t^2 q) q D^2 / S)^(-(n - 1) / 2).
    """
    evidence: Numbers = np.exp(np.minimum(_log_mean_evidence(segment), LARGEST_LOG))
    return evidence


def _log_mean_evidence(segment: Numbers) -> Numbers:
    """Return the logarithm of `mean_evidence`, which has no largest value."""
    count = len(segment)
    before = np.arange(1, count, dtype=np.float64)
    deviations = segment - segment.mean()
    squares = float((deviations**2).sum())
    if squares == 0:
        return np.zeros(count - 1)
    weight = before * (count - before) / count
    # Deviations before a position sum to -q D.
    explained = np.minimum(np.cumsum(deviations)[:-1] ** 2 / weight / squares, 1.0)
    spread = 1 + EFFECT_SIZE**2 * weight
    logs: Numbers = -np.log(spread) / 2
    logs -= (count - 1) / 2 * np.log(1 - (1 - 1 / spread) * explained)
    return logs


def rank_evidence(segment: Numbers) -> Numbers:
    """Return the e-value of a rise after 1, 2, … n - 1 values, by their ranks, shape (n - 1,).

    It is the likelihood of the ranks if a value after the rise is drawn with the odds r to be the
    larger one of two, over their likelihood if all orders are equally likely, which holds for
    exchangeable values of any distribution. For Lehmann's alternatives (1953,
    doi:10.1214/aoms/1177729080), with w = r for values after the rise and 1 for those before it, in
    ascending order, and m of them after it (Savage 1956, doi:10.1214/aoms/1177728170):

        n! r^m / ((w_1) (w_1 + w_2) … (w_1 + … + w_n)).

    It is the mean over `ODDS`, and over the same in descending order with odds of 1 / r, as either order
    weighs one tail more.
    """
    count = len(segment)
    after = np.arange(count - 1, 0, -1)
    # Whether each value, in ascending order, comes after the rise; shape (n - 1, n).
    is_after = np.argsort(segment, kind="stable") >= np.arange(1, count)[:, None]
    total = np.zeros(count - 1)
    for odds in ODDS:
        for ordered, ratio in ((is_after, odds), (is_after[:, ::-1], 1 / odds)):
            sums = np.cumsum(np.where(ordered, ratio, 1.0), axis=1)
            logs = math.lgamma(count + 1) + after * math.log(ratio) - np.log(sums).sum(axis=1)
            total += np.exp(np.minimum(logs, LARGEST_LOG))
    evidence: Numbers = total / (2 * len(ODDS))
    return evidence


def _innovations(segment: Numbers, start: int) -> Numbers:
    """Return each value less what its neighbor before it says of it, for correlated neighbors.

    With a lag-1 correlation p these are x_i - p x_(i-1), independent for an autoregressive series. They
    change where the series does. Where p isn't positive they are the values themselves.
    """
    correlation = _correlation(segment, start)
    if correlation == 0:
        return segment
    return segment[1:] - correlation * segment[:-1]


def _correlation(segment: Numbers, start: int) -> float:
    """Return the lag-1 correlation of a segment that changes at `start`, 0 or more.

    The estimate r of p is biased, as in `harness.statistics.sequential`, here by two means: solved for
    p with twice the bias it is (r n + 2) / (n - 5).
    """
    count = len(segment)
    before, after = segment[:start], segment[start:]
    deviations = np.concatenate([before - before.mean(), after - after.mean()])
    squares = float((deviations**2).sum())
    if squares == 0 or count < 10:
        return 0.0
    products = float((deviations[1:] * deviations[:-1]).sum())
    return min(max((products / squares * count + 2) / (count - 5), 0.0), HIGHEST_CORRELATION)


def _most_likely_start(evidence: Numbers) -> int:
    """Return the position with the most evidence that leaves `FEWEST_VALUES` on both sides."""
    inner = evidence[FEWEST_VALUES - 1 : len(evidence) - FEWEST_VALUES + 1]
    return int(inner.argmax()) + FEWEST_VALUES


def _refined(series: Numbers, starts: Sequence[int], seen: Sequence[int]) -> list[Change]:
    """Return the changes as all values up to the next one show them.

    `starts` are those of all segments, as they were chosen when each change was seen.
    """
    changes = []
    begin = 0
    for number, seen_at in enumerate(seen):
        end = starts[number + 2] if number + 2 < len(starts) else len(series)
        segment = series[begin:end]
        logs = _log_mean_evidence(segment)
        # Over its largest value: a long history has more evidence than a number can hold.
        evidence = np.exp(logs - logs[: seen_at - begin].max())
        evidence[seen_at - begin :] = 0  # it began before it was seen
        start = _most_likely_start(evidence)
        earliest, latest = _location(evidence)
        changes.append(
            Change(
                start=begin + start,
                earliest=begin + min(earliest, start),
                latest=begin + max(latest, start),
                seen=seen_at,
                estimate=_estimate(segment, start),
            )
        )
        begin += start
    return changes


def _location(evidence: Numbers) -> tuple[int, int]:
    """Return the first and the last of the most likely positions.

    All are equally likely before anything is measured, so that the probability of each is its share of
    the evidence.
    """
    order = np.argsort(evidence)[::-1]
    shares = np.cumsum(evidence[order] / evidence.sum())
    chosen = order[: int(np.searchsorted(shares, LOCATION_CONFIDENCE)) + 1]
    return int(chosen.min()) + 1, int(chosen.max()) + 1


def _estimate(segment: Numbers, start: int) -> Estimate:
    """Return the size of a change; correlated neighbors tell less than they are many."""
    estimate = unpaired(segment[:start].tolist(), segment[start:].tolist())
    p = _correlation(segment, start)
    assert estimate.standard_error is not None  # both sides have several values
    return replace(estimate, standard_error=estimate.standard_error * math.sqrt((1 + p) / (1 - p)))
