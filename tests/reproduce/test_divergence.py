"""The first difference of two traces is found, and named by what was computed first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.records.trace import AFTER_MICRO_STEPS, PHASES, Mark
from harness.reproduce.divergence import compare, tensors_of

STEPS = 4
FIRST_OF_STEP = PHASES.index("all-reduce")
OF_MICRO_STEPS = PHASES[PHASES.index("data") : FIRST_OF_STEP]
OF_STEPS = PHASES[FIRST_OF_STEP:]


def trace(micro_steps: int = 2) -> list[Mark]:
    """Return a trace of STEPS steps in the order of training."""
    marks = []
    for step in range(1, STEPS + 1):
        for micro_step in range(1, micro_steps + 1):
            marks += [make_mark(step, micro_step, phase) for phase in OF_MICRO_STEPS]
        marks += [make_mark(step, AFTER_MICRO_STEPS, phase) for phase in OF_STEPS]
    return marks


def make_mark(step: int, micro_step: int, phase: str, name: str = "weight") -> Mark:
    return Mark(step=step, micro_step=micro_step, phase=phase, name=name, digest="0")


def changed(marks: Sequence[Mark], positions: Sequence[int]) -> list[Mark]:
    """Return the marks with other digests at some positions."""
    altered = list(marks)
    for position in positions:
        altered[position] = replace(altered[position], digest="1")
    return altered


@given(positions=st.sets(st.integers(0, len(trace()) - 1), min_size=1), rank=st.integers(0, 3))
def test_the_first_of_all_differences_is_named_with_its_rank(
    positions: set[int], rank: int
) -> None:
    a = [trace() for _ in range(4)]
    b = [trace() for _ in range(4)]
    b[rank] = changed(b[rank], sorted(positions))
    divergence = compare(a, b).divergence
    assert divergence is not None
    assert divergence.earliest.mark == trace()[min(positions)]
    assert divergence.ranks == [rank]
    assert divergence.agreeing == 3 * min(positions) + min(positions)


def test_all_ranks_and_tensors_of_the_same_moment_are_named() -> None:
    a = [[make_mark(1, 1, "backward", name) for name in ("bias", "weight")] for _ in range(2)]
    b = [changed(marks, [0, 1]) for marks in a]
    divergence = compare(a, b).divergence
    assert divergence is not None
    entries = [(entry.rank, entry.mark.name) for entry in divergence.together]
    assert entries == [(0, "bias"), (0, "weight"), (1, "bias"), (1, "weight")]


def test_what_only_one_trial_has_is_counted_and_not_compared() -> None:
    a = [[make_mark(1, 1, "backward", "weight"), make_mark(1, 1, "forward", "loss")]]
    b = [[make_mark(1, 1, "forward", "loss")]]
    comparison = compare(a, b)
    assert (comparison.compared, comparison.only_a, comparison.only_b) == (1, 1, 0)
    assert comparison.is_same  # under FSDP2 no gradient is a rank's own


@pytest.mark.parametrize("phase", ["parameters", "backward", "optimizer state", "evaluation"])
def test_tensors_of_other_names_are_a_difference(phase: str) -> None:
    both = [make_mark(1, 1, phase, "bias"), make_mark(1, 1, phase, "scale")]
    weight, kernel = make_mark(1, 1, phase, "weight"), make_mark(1, 1, phase, "kernel")
    comparison = compare([[*both, weight]], [[*both, kernel]])
    assert comparison.divergence is None
    assert not comparison.is_same
    assert tensors_of(comparison.other_tensors_a) == [f"{phase} weight"]
    assert tensors_of(comparison.other_tensors_b) == [f"{phase} kernel"]


def test_a_phase_that_only_one_trial_has_is_a_difference_and_a_step_is_not() -> None:
    equal = compare([trace(), trace()], [trace(), trace()])
    assert (equal.divergence, equal.compared) == (None, 2 * len(trace()))
    state = make_mark(1, AFTER_MICRO_STEPS, "workload state", "average")
    assert not compare([[*trace(), state]], [trace()]).is_same
    later = make_mark(STEPS + 1, AFTER_MICRO_STEPS, "optimizer")
    assert compare([[*trace(), later]], [trace()]).is_same
    evaluation = make_mark(2, AFTER_MICRO_STEPS, "evaluation")
    assert compare([trace()], [[mark for mark in trace() if mark != evaluation]]).is_same


@pytest.mark.parametrize("phase", ["data", "forward", "backward"])
def test_ranks_of_another_number_are_compared_only_in_what_is_the_trials(phase: str) -> None:
    position = [mark.phase for mark in trace()].index(phase)
    two_ranks = [changed(trace(), [position]), trace()]
    comparison = compare([trace()], two_ranks)
    assert comparison.divergence is None
    assert comparison.compared == STEPS * len(OF_STEPS)
