"""Steady state is found where it begins, in noise of many kinds, and missed nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.measure.steady import Steady, find_steady

STEPS = 500
TRIES = 200


def noise(rng: np.random.Generator, steps: int = STEPS) -> NDArray[np.float64]:
    return np.exp(rng.normal(0, 0.03, steps))


def drift(rng: np.random.Generator) -> NDArray[np.float64]:
    """Noise of 2.5% that changes slowly, as machines do."""
    found = np.zeros(STEPS)
    for at in range(1, STEPS):
        found[at] = 0.95 * found[at - 1] + rng.normal(0, 0.025 * np.sqrt(1 - 0.95**2))
    return np.exp(found) * noise(rng)


def spikes(rng: np.random.Generator) -> NDArray[np.float64]:
    return noise(rng) * np.where(rng.random(STEPS) < 0.02, 10, 1)


def searched(make: Callable[[np.random.Generator], Any], start: int = 0) -> list[Steady]:
    return [find_steady(make(np.random.default_rng(seed)), start) for seed in range(TRIES)]


@pytest.mark.parametrize("make", [noise, drift, spikes])
def test_what_is_steady_from_the_start_is_measured_whole(
    make: Callable[[np.random.Generator], Any],
) -> None:
    found = searched(make)
    assert np.mean([one.first == 0 for one in found]) >= 0.9
    assert np.mean([one.settled is True for one in found]) >= 0.9


@pytest.mark.parametrize("factor", [0.7, 1.2, 1.5, 10.0])
def test_a_change_of_level_is_found_where_it_is(factor: float) -> None:
    found = searched(lambda rng: noise(rng) * np.where(np.arange(STEPS) < 60, factor, 1))
    assert np.mean([one == Steady(60, True) for one in found]) >= 0.95


def test_a_decaying_warm_up_ends_where_its_rest_is_small() -> None:
    excess = np.exp(-np.arange(STEPS) / 20)
    found = searched(lambda rng: noise(rng) * (1 + excess))
    assert all(one.settled for one in found)
    assert np.mean([excess[one.first] for one in found]) < 0.1  # of a step
    assert np.mean([one.first for one in found]) < 80


def test_a_disturbance_that_passes_is_left_out_with_all_before_it() -> None:
    bump = np.where(np.abs(np.arange(STEPS) - 250) < 40, 1.3, 1)
    found = searched(lambda rng: noise(rng) * bump)
    assert np.mean([one == Steady(290, True) for one in found]) >= 0.95


@pytest.mark.parametrize(
    "shape",
    [
        np.linspace(1, 2, STEPS),
        np.where(np.arange(STEPS) > 450, 1.5, 1),
        np.where((np.arange(STEPS) // 60) % 2, 1.3, 1),
    ],
    ids=["ever slower", "a change at the end", "to and fro"],
)
def test_what_never_settles_says_so(shape: NDArray[np.float64]) -> None:
    found = searched(lambda rng: noise(rng) * shape)
    assert np.mean([one == Steady(0, False) for one in found]) >= 0.95


def test_too_few_steps_tell_nothing() -> None:
    assert find_steady(np.ones(19)) == Steady(0, None)
    assert find_steady(np.ones(20)) == Steady(0, True)
    assert find_steady(np.ones(25), 6) == Steady(6, None)
    assert find_steady(np.ones(0)) == Steady(0, None)


def test_first_steps_are_never_measured() -> None:
    slow_late = np.where(np.arange(STEPS) < 30, 1.0, 1.5)
    assert find_steady(np.ones(STEPS), 10) == Steady(10, True)
    assert find_steady(slow_late, 10) == Steady(30, True)
