"""Steps to a goal are compared both ways, and no seed that never reached it is left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.analysis.compare import Rules, Side, compare_by
from harness.analysis.questions import steps_by_seed, steps_question
from harness.analysis.result import CellResult, trial_row
from harness.records.record import TargetMetric
from tests.factories import make_cell, make_record
from tests.support.results import make_result

GOAL = 0.9
OTHER = make_cell(strategy="ddp", world_size=2)


def reaching(steps: Sequence[int | None], *, other: bool = False) -> CellResult:
    """Return a cell whose seeds reach the goal after these steps, None for never."""
    courses = []
    for count in steps:
        best = (1000, 0.8) if count is None else (count, 0.95)
        courses.append([(10, 0.5), best])
    kind: dict[str, Any] = {"cell": OTHER, "bits": "b"} if other else {"cell": make_cell()}
    return make_result([100.0] * len(steps), courses=courses, **kind)


def verdict(a: Sequence[int | None], b: Sequence[int | None]) -> tuple[str | None, list[str], int]:
    """Return the verdict on steps, what is missing, and the exit code."""
    side = Side(name="demo", cells=[reaching(a), reaching(b, other=True)])
    comparison = compare_by(side, ["strategy", "world_size"], Rules(goal=GOAL))
    labels = [row.label for row in comparison.verdicts if "steps" in row.metric.name]
    return (labels[0] if labels else None), list(comparison.missing), comparison.exit_code


@pytest.mark.parametrize(
    ("a", "b", "label"),
    [
        ([400, 420, 380, 410], [401, 419, 381, 409], "same"),
        ([400, 420, 380, 410], [800, 850, 770, 810], "converges slower"),
        ([400, 420, 380, 410], [200, 215, 190, 205], "converges faster"),
        ([400, 800, 300, 500], [500, 600, 500, 400], "inconclusive"),
        ([400, 420], [400, 440], "inconclusive"),
        ([400], [400], "inconclusive"),
    ],
)
def test_verdicts(a: list[int], b: list[int], label: str) -> None:
    named, missing, _ = verdict(a, b)
    assert (named, missing) == (label, [])


def test_a_seed_that_never_reached_the_goal_is_named_and_decides_nothing() -> None:
    """Without seed 3 the others would be the same."""
    named, missing, code = verdict([400, 420, 380, 410], [401, 419, 381, None])
    assert (named, code) == (None, 3)
    (message,) = missing
    assert message.startswith(f"{OTHER.label}: steps to accuracy 0.9: seed 3 of B never reached it")
    # A script may evaluate before it trains, and its model may have learned before.
    named, missing, code = verdict([400, 420, 380], [401, 0, 381])
    assert (named, code, "seed 1 of B never" in missing[0]) == (None, 3, True)


def test_the_same_bits_converge_alike_from_one_seed_on() -> None:
    a = reaching([400])
    question = steps_question(a, replace(a, cell=OTHER), GOAL)
    assert not isinstance(question, str)
    assert question.estimate.standard_error == 0.0
    assert question.mean_a == pytest.approx(400)


def test_steps_are_the_mean_of_a_seeds_repeats() -> None:
    cell = reaching([100, 300])
    second = replace(cell.trials[1], seed=0, repeat=1)
    assert steps_by_seed(replace(cell, trials=[cell.trials[0], second]), GOAL) == {0: 200.0}
    never = replace(second, improvements=second.improvements[:1])
    assert steps_by_seed(replace(cell, trials=[cell.trials[0], never]), GOAL) == {0: math.inf}


def test_a_target_that_falls_is_reached_from_above() -> None:
    target = TargetMetric(name="loss", higher_is_better=False)
    cell = make_result([100.0], courses=[[(10, 2.0), (20, 0.4)]], target=target)
    assert steps_by_seed(cell, 0.5) == {0: 20.0}


def test_what_has_nothing_in_common_says_so() -> None:
    without = make_result([100.0])  # as a baseline, without its evaluations
    problem = steps_question(reaching([400]), without, GOAL)
    assert isinstance(problem, str)
    assert "no seed that both sides have evaluated" in problem


def test_a_records_improvements_hold_every_goals_first_evaluation() -> None:
    record = make_record()
    assert record.rank0
    template = record.rank0.evaluations[0]
    evaluations = []
    for number, value in enumerate([0.5, 0.4, 0.7, 0.7, 0.9, 0.8], start=1):
        evaluations.append(replace(template, step=10 * number, metrics={"accuracy": value}))
    record = replace(record, rank0=replace(record.rank0, evaluations=tuple(evaluations)))
    points = [(point.step, point.value) for point in trial_row(record).improvements]
    assert points == [(10, 0.5), (30, 0.7), (50, 0.9)]
