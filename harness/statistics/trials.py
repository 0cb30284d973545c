"""Trials of a cell: they are the unit of its mean, however many steps each of them has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

FEWEST_SEEDS = 3  # below that the spread between seeds can't be estimated


@dataclass(frozen=True, kw_only=True)
class TrialSpread:
    """The parts of the spread of trials, as standard deviations of one trial.

    They are None where a trial's own standard error is unknown or where there is a single trial.
    """

    within: float | None  # explained by the trial's own steps: longer trials make it smaller
    between: float | None  # the remainder, which only more trials average out


def mean_by_seed(values: Sequence[float], seeds: Sequence[int]) -> dict[int, float]:
    """Return the mean value of each seed, in order of appearance; `seeds[i]` belongs to
    `values[i]`.
    """
    by_seed: dict[int, list[float]] = {}
    for value, seed in zip(values, seeds, strict=True):
        by_seed.setdefault(seed, []).append(value)
    return {seed: fmean(repeats) for seed, repeats in by_seed.items()}


def independent_values(values: Sequence[float], seeds: Sequence[int]) -> list[float]:
    """Return the values that an interval of the mean may count as independent.

    Repeats of a seed share whatever the seed brings (initial weights, the order of the data), so
    they are averaged and each seed counts once. With fewer than `FEWEST_SEEDS` seeds their spread
    can't be estimated; every value then counts, as if seeds did not matter.
    """
    means = mean_by_seed(values, seeds)
    if len(means) < FEWEST_SEEDS:
        return list(values)
    return list(means.values())


def spread_of_trials(
    values: Sequence[float], standard_errors: Sequence[float | None]
) -> TrialSpread:
    """Return the spread of trials from each trial's mean and its own standard error (`trace_mean`).

    The variance of the values holds both parts, as in a one-way random-effects model:

        Var(value) = between^2 + within^2.

    Raises ValueError without values.
    """
    errors = [error for error in standard_errors if error is not None]
    if len(errors) < len(values):
        return TrialSpread(within=None, between=None)
    within = math.sqrt(fmean(error**2 for error in errors))
    between = None
    if len(values) > 1:
        between = math.sqrt(max(0.0, variance(values) - within**2))
    return TrialSpread(within=within, between=between)
