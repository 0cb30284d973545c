"""A trial says that its mean can't be known from its steps, and why, where its interval would mislead."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.statistics.doubt import FEWEST_STEPS, doubt_about_length, doubt_about_mean
from harness.statistics.trace import FEWEST, trace_mean
from tests.statistics.traces import DISTURBANCES, Disturbed, Numbers

Mask = NDArray[np.bool_]
ROWS = 300


def answers(disturbed: Disturbed) -> tuple[Mask, Mask]:
    """Return whether the interval of each trace covers the truth, and whether the trace says that it
    may not.
    """
    means = trace_mean(disturbed.values)
    is_covered = np.abs(means.mean - disturbed.truth) <= means.half_width()
    says = np.array([doubt_about_mean(values) is not None for values in disturbed.values])
    return is_covered, says


@pytest.mark.parametrize("kind", DISTURBANCES)
def test_a_long_trial_covers_its_mean_or_says_that_it_may_not(kind: str) -> None:
    """Where what disturbs it has happened: what hasn't can't be seen."""
    disturbed = DISTURBANCES[kind](np.random.default_rng(5), ROWS, 1000)
    is_covered, says = answers(disturbed)
    share = (is_covered | says)[disturbed.is_seen].mean()
    assert share >= 0.93 - 3 * np.sqrt(0.93 * 0.07 / ROWS)


@pytest.mark.parametrize("kind", DISTURBANCES)
def test_a_trial_that_is_long_enough_holds_whatever_may_disturb_it(kind: str) -> None:
    """Also where what disturbs it has not happened."""
    disturbed = DISTURBANCES[kind](np.random.default_rng(5), ROWS, FEWEST_STEPS)
    is_covered, says = answers(disturbed)
    assert (is_covered | says).mean() >= 0.93 - 3 * np.sqrt(0.93 * 0.07 / ROWS)
    assert doubt_about_length(FEWEST_STEPS) is None


def test_a_short_trial_says_how_few_steps_it_has() -> None:
    assert doubt_about_length(60) == (
        "60 steps are too few to tell a drift from jitter, or to have rare stragglers"
    )


def test_without_its_words_the_interval_would_mislead() -> None:
    disturbed = DISTURBANCES["drift, AR(1) 0.995, a fifth of it"](
        np.random.default_rng(5), ROWS, 1000
    )
    is_covered, _ = answers(disturbed)
    assert is_covered.mean() < 0.8


@pytest.mark.parametrize("n", [150, 1000])
def test_usual_steps_raise_no_doubt(n: int) -> None:
    _, says = answers(DISTURBANCES["none"](np.random.default_rng(6), 1000, n))
    assert says.mean() < 0.03


def steady(n: int = 1000) -> Numbers:
    return np.random.default_rng(7).normal(0.01, 0.0001, n)


def test_stragglers_are_counted_with_their_part_of_the_time() -> None:
    values = steady()
    values[[100, 400, 700, 701]] = 1.0
    assert doubt_about_mean(values) == "4 stragglers carry 29% of the time"
    values = steady()
    values[-1] = 0.1
    assert doubt_about_mean(values) == "1 straggler carries 1.0% of the time"
    values[::30] *= 1.5
    values[[100, 400, 700]] = 1.0
    assert doubt_about_mean(values) == "3 stragglers carry 23% of the time", "not of the others"
    many = steady()
    many[::30] *= 1.5
    assert doubt_about_mean(many) is None, "enough of them to know how many there are"


def test_speeds_are_named_with_their_changes() -> None:
    values = steady()
    values[300:] *= 1.25
    assert doubt_about_mean(values) == "it had two speeds, 25% apart, and changed between them once"
    values[600:] /= 1.25
    assert doubt_about_mean(values) == (
        "it had two speeds, 25% apart, and changed between them twice"
    )
    values = steady()
    values[::2] *= 1.25
    assert doubt_about_mean(values) is None


def test_a_drift_is_named_with_its_size() -> None:
    values = steady() * np.linspace(1, 1.05, 1000)
    doubt = doubt_about_mean(values)
    assert doubt is not None
    assert doubt.startswith("its speed drifts: batches of 41 steps are up to 5.1% apart")


@pytest.mark.parametrize(
    "values", [np.ones(1000), np.ones(FEWEST), np.zeros(100), np.tile([0.1, 0.3], 1200)]
)
def test_what_repeats_itself_raises_no_doubt(values: Numbers) -> None:
    assert doubt_about_mean(values) is None


def test_too_few_values_say_nothing_as_their_error_is_unknown() -> None:
    values = np.ones(FEWEST - 1)
    values[3] = 100
    assert doubt_about_mean(values) is None
