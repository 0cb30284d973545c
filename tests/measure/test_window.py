"""The measured window begins where steady state does, in noise of many kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.measure.window import find_steady, find_window

STEPS = 500
TRIES = 200


def noise(rng: np.random.Generator) -> NDArray[np.float64]:
    """Return step times with independent noise of 3%."""
    return np.exp(rng.normal(0, 0.03, STEPS))


def drift(rng: np.random.Generator) -> NDArray[np.float64]:
    """Return step times with noise of 2.5% that changes slowly, as machines do."""
    logs = np.zeros(STEPS)
    for step in range(1, STEPS):
        logs[step] = 0.95 * logs[step - 1] + rng.normal(0, 0.025 * np.sqrt(1 - 0.95**2))
    return np.exp(logs) * noise(rng)


def spikes(rng: np.random.Generator) -> NDArray[np.float64]:
    """Return step times of which 2% are ten times as long."""
    return noise(rng) * np.where(rng.random(STEPS) < 0.02, 10, 1)


def find_in_many(
    make: Callable[[np.random.Generator], Any],
) -> list[tuple[int, bool | None]]:
    """Return the steady parts of TRIES random series."""
    return [find_steady(make(np.random.default_rng(seed)), 0) for seed in range(TRIES)]


@pytest.mark.parametrize("make", [noise, drift, spikes])
def test_a_series_that_is_steady_from_the_start_is_steady_as_a_whole(
    make: Callable[[np.random.Generator], Any],
) -> None:
    results = find_in_many(make)
    assert np.mean([first == 0 for first, _ in results]) >= 0.9
    assert np.mean([settled is True for _, settled in results]) >= 0.9


@pytest.mark.parametrize("factor", [0.7, 1.2, 1.5, 10.0])
def test_a_change_of_level_is_found_where_it_is(factor: float) -> None:
    results = find_in_many(lambda rng: noise(rng) * np.where(np.arange(STEPS) < 60, factor, 1))
    assert np.mean([result == (60, True) for result in results]) >= 0.95


def test_a_decaying_warm_up_ends_where_little_of_it_remains() -> None:
    excess = np.exp(-np.arange(STEPS) / 20)
    results = find_in_many(lambda rng: noise(rng) * (1 + excess))
    assert all(settled for _, settled in results)
    assert np.mean([excess[first] for first, _ in results]) < 0.1  # of a step
    assert np.mean([first for first, _ in results]) < 80


def test_a_temporary_disturbance_is_left_out_with_all_steps_before_it() -> None:
    bump = np.where(np.abs(np.arange(STEPS) - 250) < 40, 1.3, 1)
    results = find_in_many(lambda rng: noise(rng) * bump)
    assert np.mean([result == (290, True) for result in results]) >= 0.95


@pytest.mark.parametrize(
    "shape",
    [
        np.linspace(1, 2, STEPS),
        np.where(np.arange(STEPS) > 450, 1.5, 1),
        np.where((np.arange(STEPS) // 60) % 2, 1.3, 1),
    ],
    ids=["ever slower", "a change at the end", "back and forth"],
)
def test_a_series_that_never_settles_is_not_settled(shape: NDArray[np.float64]) -> None:
    results = find_in_many(lambda rng: noise(rng) * shape)
    assert np.mean([result == (0, False) for result in results]) >= 0.95


def test_too_few_steps_allow_no_decision() -> None:
    assert find_steady(np.ones(19)) == (0, None)
    assert find_steady(np.ones(20)) == (0, True)
    assert find_steady(np.ones(25), 6) == (6, None)
    assert find_steady(np.ones(0)) == (0, None)


def test_first_steps_are_never_measured() -> None:
    slow_late = np.where(np.arange(STEPS) < 30, 1.0, 1.5)
    assert find_steady(np.ones(STEPS), 10) == (10, True)
    assert find_steady(slow_late, 10) == (30, True)


def test_every_attempt_warms_up_again() -> None:
    seconds = np.concatenate([[5.0] * 15, [1.0] * 30, [5.0] * 15, [1.0] * 30])
    window = find_window(seconds, 2, [45])
    assert np.flatnonzero(window.mask).tolist() == [*range(15, 45), *range(60, 90)]
    assert window.settled is True


def test_an_attempt_that_may_be_warm_up_all_through_is_left_out() -> None:
    seconds = np.concatenate([[5.0] * 15, [1.0] * 45, [5.0] * 12, [5.0] * 15, [1.0] * 45])
    window = find_window(seconds, 2, [60, 72])
    assert np.flatnonzero(window.mask).tolist() == [*range(15, 60), *range(87, 132)]
    short = find_window(np.ones(24), 2, [12])
    assert np.flatnonzero(~short.mask).tolist() == [0, 1, 12, 13], "there is nothing better"


def test_too_few_steps_are_measured_and_not_called_steady() -> None:
    window = find_window(np.ones(12), 5, [])
    assert window.mask.tolist() == [False] * 5 + [True] * 7
    assert window.settled is None
    assert not find_window(np.ones(3), 5, []).mask.any()


@pytest.mark.parametrize(("steps", "settled"), [(29, None), (400, False)])
def test_one_attempt_that_never_settled_is_enough(steps: int, settled: bool | None) -> None:
    rising = np.linspace(1, 3, steps)
    assert find_window(rising, 0, []).settled is settled
    if settled is False:
        assert find_window(np.concatenate([np.ones(100), rising]), 0, [100]).settled is False
