"""A cell's mean over its trials: trials are the unit, however many steps each of them has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.statistics.interval import Interval, mean_interval

FEWEST_SEEDS = 3  # of which the spread between seeds can be told


@dataclass(frozen=True, kw_only=True)
class TrialsMean:
    """A mean over trials with Student's interval, and where the spread of trials comes from.

    `within` is the part (a deviation of one trial) that their own steps explain: longer trials make it smaller.
    `between` is the rest, which only more trials average out. None where a trial's own error is unknown, or where there
    is one trial only.
    """

    interval: Interval
    within: float | None
    between: float | None


def seed_means(values: Sequence[float], seeds: Sequence[int]) -> list[float]:
    """The values of which a cell's interval is made: the means of seeds where there are enough of them, since repeats
    of a seed share whatever it brings; else the values themselves, as if seeds did not matter to them."""
    own = {
        seed: [value for value, other in zip(values, seeds, strict=True) if other == seed]
        for seed in seeds
    }
    return (
        [sum(found) / len(found) for found in own.values()]
        if len(own) >= FEWEST_SEEDS
        else list(values)
    )


def mean_of_trials(
    values: Sequence[float], errors: Sequence[float | None], confidence: float = 0.95
) -> TrialsMean:
    """From each trial's mean and its own standard error (`trace_mean`); raises ValueError without values.

    The variance of the values already holds both parts, as in a one-way random-effects model, so that Student's
    interval over them is exact for normal effects where seeds do not matter to the values: nothing is added, and the
    steps of a trial never count as trials.
    """
    interval = mean_interval(values, confidence)
    known = [error for error in errors if error is not None]
    within = (
        math.sqrt(sum(error**2 for error in known) / len(known))
        if len(known) == len(values)
        else None
    )
    between = None
    if within is not None and len(values) > 1:
        variance = sum((value - interval.mean) ** 2 for value in values) / (len(values) - 1)
        between = math.sqrt(max(0.0, variance - within**2))
    return TrialsMean(interval=interval, within=within, between=between)
