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
            step=number, epoch=1, metrics=test, seconds=0.1, started_at=1, validation=validation
        )
        made.append(evaluation)
    return made


@pytest.mark.parametrize(
    ("rule", "values", "stops_after"),
    [
        ({"patience": 2}, [3, 4, 2, 3, 1, 2, 1], 7),
        ({"patience": 1}, [1, 1], 2),
        ({"patience": 2}, [3, 2, 1, 0], None),
        ({"goal": 1.0}, [3, 2, 1, 5], 3),
        ({"goal": 1.0, "patience": 1}, [3, 3, 1], 2),
        ({"metric": "target", "patience": 2}, [1, 2, 2, 1.5], 4),
        ({"metric": "target", "goal": 0.9}, [0.5, 0.8, 0.91], 3),
    ],
)
def test_a_rule_stops_at_the_first_evaluation_that_meets_it(
    rule: dict[str, Any], values: list[float], stops_after: int | None
) -> None:
    stop = StopRule(**rule)
    metric = LOSS if stop.metric == "loss" else ACCURACY
    done = evaluations(values, metric.name)
    reasons = [
        find_stop_reason(stop, metric, done[: count + 1]) is not None
        for count in range(len(values))
    ]
    stopped_after = reasons.index(True) + 1 if True in reasons else None
    assert stopped_after == stops_after


def test_a_rule_without_a_validation_set_is_refused_before_the_first_step(tmp_path: Path) -> None:
    workload = LineFit(Options(), Settings())
    with pytest.raises(BadInput, match=r"^stop: LineFit.splits\(\): found no validation set"):
        stopping_trainer(tmp_path, workload, StopRule(metric="target", patience=1))
    assert workload.step == 0


def test_a_rule_about_a_loss_that_is_no_metric_is_refused(tmp_path: Path) -> None:
    workload = LineFit(Options(validation=40), Settings())
    with pytest.raises(
        BadInput, match=r"with 'loss' among them, which the target or stop\.metric names"
    ):
        stopping_trainer(tmp_path, workload, StopRule(patience=1))


def stopping_trainer(folder: Path, workload: LineFit, rule: StopRule) -> Any:
    """Return a trainer of 20 steps that evaluates every fourth and may stop by a rule."""
    assignment = make_assignment(steps=20)
    trial = assignment.trial
    cell = replace(trial.cell, stop=rule, evaluate=replace(trial.cell.evaluate, steps=4))
    return make_trainer(replace(assignment, trial=replace(trial, cell=cell)), workload, folder)
