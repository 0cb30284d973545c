"""Trials of a cell: they are the unit of its mean, however many steps each of them has."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean


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
    they are averaged and each seed counts once, however few seeds there are: repeats show nothing of
    how much the mean would move with other seeds.
    """
    return list(mean_by_seed(values, seeds).values())
