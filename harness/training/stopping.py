"""Decides when a trial ends before its length: pure functions of its evaluations.

The evaluations are the same at every rank, and every checkpoint has them. So all ranks decide alike,
and a trial that was interrupted ends at the same step as one that was not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from harness.records.record import Evaluation, TargetMetric
from harness.sweep.cell import StopRule

LOSS = TargetMetric(name="loss", higher_is_better=False)


def selection_metric(rule: StopRule | None, target: TargetMetric) -> TargetMetric:
    """Return the metric by which the best evaluation of a trial is chosen."""
    if rule is not None and rule.metric == "loss":
        return LOSS
    return target


def find_stop_reason(
    rule: StopRule, target: TargetMetric, evaluations: Sequence[Evaluation]
) -> Literal["patience", "goal"] | None:
    """Return why a trial ends after its last evaluation, None if it continues.

    `target` is the workload's. The goal goes before patience, if the last evaluation has met both.
    """
    metric = selection_metric(rule, target)
    best = metric.best(evaluations)
    if best is None:
        return None
    score = metric.score(best.deciding[metric.name])
    if rule.goal is not None and score >= metric.score(rule.goal):
        return "goal"
    evaluations_since = len(evaluations) - 1 - evaluations.index(best)
    if rule.patience is not None and evaluations_since >= rule.patience:
        return "patience"
    return None
