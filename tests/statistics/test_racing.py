"""Cells leave a race when they are certainly not among the best, and equal ones hardly ever do."""

from __future__ import annotations

import numpy as np
import pytest

from harness.statistics.racing import Race, certainly_worse
from harness.statistics.sequential import Numbers


def run_race(
    values: Numbers, *, keep: int = 1, error_rate: float = 0.05, margins: Numbers | None = None
) -> Race:
    """Return a race of (cells, blocks) after its last look."""
    race = Race(len(values), keep=keep, error_rate=error_rate, with_goal=margins is not None)
    for blocks in range(1, values.shape[1] + 1):
        race.look(values[:, :blocks], margins)
        if race.is_over:
            break
    return race


def noisy(means: list[float], blocks: int, spread: float = 0.02, seed: int = 0) -> Numbers:
    noise = np.random.default_rng(seed).normal(0, spread, (len(means), blocks))
    drift = np.linspace(0, 5, blocks)  # which all cells of a block have in common
    return np.array(means)[:, None] + noise + drift


@pytest.mark.parametrize("keep", [1, 2])
def test_the_best_are_left(keep: int) -> None:
    race = run_race(noisy([0.0, 1.0, 0.8, 0.2], 20), keep=keep)
    assert race.is_over
    assert list(np.flatnonzero(race.is_in)) == ([1] if keep == 1 else [1, 2])


def test_no_cell_leaves_before_the_fewest_blocks() -> None:
    values = noisy([0.0, 100.0], 12, spread=1e-6)
    race = Race(2, keep=1, error_rate=0.05)
    fewest = race.fewest_blocks()
    race.look(values[:, : fewest - 1])
    assert race.is_in.all()
    assert fewest == 3
    assert Race(48, keep=1, error_rate=0.05).fewest_blocks() == 5


def test_equal_cells_stay_in() -> None:
    races = [run_race(noisy([0.0] * 6, 20, seed=seed)) for seed in range(40)]
    assert sum(not race.is_in.all() for race in races) <= 2


def test_a_block_without_a_value_counts_for_no_pair() -> None:
    values = noisy([0.0, 1.0, 0.5], 10)
    values[1, ::2] = np.nan
    assert list(run_race(values).is_in) == [False, True, False]
    values[1] = np.nan
    assert run_race(values).is_in[1]  # of which nothing is known


def test_who_misses_the_goal_leaves_and_beats_nobody() -> None:
    values = noisy([2.0, 1.0, 0.0], 12)
    margins = np.random.default_rng(1).normal(0, 0.01, (3, 12)) + np.array([[-0.1], [0.1], [0.1]])
    assert list(run_race(values, margins=margins).is_in) == [False, True, False]
    unknown = np.full((3, 12), np.nan)
    assert run_race(values, margins=unknown).is_in.all()


def test_levels_grow_as_cells_leave() -> None:
    race = Race(10, keep=1, error_rate=0.05)
    assert race.pair_level(10) == pytest.approx(2 * 0.05 / 90)
    assert race.pair_level(2) == pytest.approx(2 * 0.05 / 18)


def test_a_cell_may_leave_because_others_have_left_at_the_same_look() -> None:
    """Between the levels of ten cells and of two, at one look."""
    pair = noisy([0.0, 0.3], 5, seed=6)
    assert not any(certainly_worse(pair, Race(10, keep=1, error_rate=0.05).pair_level(10)).ravel())
    far = noisy([-100.0] * 8, 5, seed=4)
    race = Race(10, keep=1, error_rate=0.05)
    race.look(np.concatenate([pair, far]))
    assert list(np.flatnonzero(race.is_in)) == [1]
