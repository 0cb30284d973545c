"""Seeds are the unit of a cell's mean, however many repeats each of them has."""

from __future__ import annotations

import numpy as np
import pytest

from harness.statistics.interval import mean_by_seed, mean_interval

TRIES = 4000


@pytest.mark.parametrize("seed_spread", [0.0, 1.0, 10.0], ids="{}x the noise".format)
@pytest.mark.parametrize(("seeds", "repeats"), [(2, 5), (3, 3), (5, 1)])
def test_interval_covers_the_mean_over_seeds(seeds: int, repeats: int, seed_spread: float) -> None:
    rng = np.random.default_rng([seeds, repeats])
    seed_effects = rng.normal(0, seed_spread, (TRIES, seeds, 1))
    values = (seed_effects + rng.normal(0, 1, (TRIES, seeds, repeats))).reshape(TRIES, -1)
    seed_of_value = np.repeat(np.arange(seeds), repeats).tolist()
    covers = 0
    for row in values.tolist():
        low, high = mean_interval(list(mean_by_seed(row, seed_of_value).values())).bounds or (
            0.0,
            0.0,
        )
        covers += low <= 0 <= high
    assert covers / TRIES >= 0.93


def test_repeats_of_one_seed_are_one_value() -> None:
    assert mean_by_seed([1.0, 3.0], [7, 7]) == {7: 2.0}
