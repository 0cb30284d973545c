"""When a trial ends before its length, and what it takes for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import BadInput
from harness.records.record import LOSS, Evaluation, TargetMetric
from harness.sweep.cell import StopRule
from harness.training.train import find_stop_reason
from tests.support.line import LineFit, Options
from tests.support.training import make_assignment, make_trainer
from workloads.settings import Settings

ACCURACY = TargetMetric(name="accuracy", higher_is_better=True)


def evaluations(values: Sequence[float], name: str) -> list[Evaluation]:
    """Return evaluations of these validation metrics, whose test metrics say the opposite."""
    made = []
    for number, value in enumerate(values, start=1):
        test, validation = {name: -value}, {name: value}
        evaluation = Evaluation(
            step=number, metrics=test, seconds=0.1, started_at=1, validation=validation
        )
        made.append(evaluation)
    return made


@pytest.mark.parametrize(
    ("metric", "rule", "values", "stops_after"),
    [
        (LOSS, {"patience": 2}, [3, 4, 2, 3, 1, 2, 1], 7),
        (LOSS, {"patience": 1}, [1, 1], 2),
        (LOSS, {"patience": 2}, [3, 2, 1, 0], None),
        (LOSS, {"goal": 1.0}, [3, 2, 1, 5], 3),
        (LOSS, {"goal": 1.0, "patience": 1}, [3, 3, 1], 2),
        (ACCURACY, {"patience": 2}, [1, 2, 2, 1.5], 4),
        (ACCURACY, {"goal": 0.9}, [0.5, 0.8, 0.91], 3),
    ],
)
def test_a_rule_stops_at_the_first_evaluation_that_meets_it(
    metric: TargetMetric, rule: dict[str, Any], values: list[float], stops_after: int | None
) -> None:
    stop = StopRule(**rule)
    done = evaluations(values, metric.name)
    reasons = [
        find_stop_reason(stop, metric, done[: count + 1]) is not None
        for count in range(len(values))
    ]
    stopped_after = reasons.index(True) + 1 if True in reasons else None
    assert stopped_after == stops_after


def test_a_rule_without_a_validation_set_is_refused_before_the_first_step(tmp_path: Path) -> None:
    workload, assignment = LineFit(Options(), Settings()), make_assignment(steps=20)
    cell = replace(assignment.trial.cell, stop=StopRule(patience=1))
    assignment = replace(assignment, trial=replace(assignment.trial, cell=cell))
    with pytest.raises(BadInput, match=r"^stop: LineFit.splits\(\): found no validation set"):
        make_trainer(assignment, workload, tmp_path)
    assert workload.step == 0
