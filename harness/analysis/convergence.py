"""How many steps two cells need until the target metric reaches a goal, compared over seeds.

MLPerf's check of convergence is one-sided: it refuses what converges faster than its reference. Here
the question is two-sided, because a change that needs fewer steps has changed what is computed too.

A seed that never reached the goal has no number of steps, only a lower bound: it is censored. To leave
it out would compare the lucky seeds only, so that no verdict is given where either cell has one. Nor
is one where a script had reached the goal before its first step: 0 steps have no ratio to others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from harness.analysis.questions import MetricDifference, are_identical, with_smallest_step
from harness.analysis.result import CellResult, MetricPoint, TrialResult
from harness.records.record import TargetMetric
from harness.statistics.estimate import Estimate, certain_zero, paired
from harness.statistics.verdict import Metric, Question

STEPS_MARGIN = 0.1  # the smallest change of steps that matters, a fraction


def convergence_metric(target: TargetMetric, goal: float) -> Metric:
    """Return the metric of the steps to a goal."""
    return Metric(
        name=f"steps to {target.name} {goal:g}",
        higher_is_better=False,
        relative=True,
        min_effect=STEPS_MARGIN,
        better="converges faster",
        worse="converges slower",
    )


def steps_by_seed(cell: CellResult, goal: float) -> dict[int, float | None]:
    """Return the steps until the goal by seed, in the mean of its repeats; None if one never was.

    Steps are those of the first evaluation that shows it. Trials without evaluations are left out.
    """
    by_seed: dict[int, list[float | None]] = {}
    for trial in cell.trials:
        if trial.improvements:
            point = first_at_goal(cell, trial, goal)
            by_seed.setdefault(trial.seed, []).append(None if point is None else float(point.step))
    means: dict[int, float | None] = {}
    for seed, repeats in by_seed.items():
        reached = [steps for steps in repeats if steps is not None]
        means[seed] = fmean(reached) if len(reached) == len(repeats) else None
    return means


def first_at_goal(cell: CellResult, trial: TrialResult, goal: float) -> MetricPoint | None:
    """Return the first evaluation at which a trial had reached the goal, None if it never did."""
    assert cell.target is not None
    for point in trial.improvements:
        if cell.target.score(point.value) >= cell.target.score(goal):
            return point
    return None


def convergence_difference(a: CellResult, b: CellResult, goal: float) -> MetricDifference | None:
    """Return the log ratio of steps to the goal over the seeds in common, in pairs.

    None where there are no such seeds, and where one never reached the goal (`obstacles` says so).
    """
    if obstacles(a, b, goal):
        return None
    assert a.target is not None
    logs_a, logs_b = _logs(steps_by_seed(a, goal)), _logs(steps_by_seed(b, goal))
    common = [seed for seed in logs_a if seed in logs_b]
    metric = convergence_metric(a.target, goal)
    return MetricDifference(
        question=Question(metric=metric, estimate=_estimate(a, b, logs_a, logs_b, common)),
        mean_a=math.exp(fmean(logs_a[seed] for seed in common)),
        mean_b=math.exp(fmean(logs_b[seed] for seed in common)),
    )


def _estimate(
    a: CellResult,
    b: CellResult,
    logs_a: Mapping[int, float],
    logs_b: Mapping[int, float],
    common: Sequence[int],
) -> Estimate:
    """Return the estimated log ratio; the same bits converge alike, however few seeds there are.

    Steps are known to the next evaluation only, so that its spread is at least the smallest step. If
    all reached the goal at the same evaluation, nothing is known of it.
    """
    if are_identical(a, b):
        return certain_zero(len(common))
    estimate = paired([logs_b[seed] - logs_a[seed] for seed in common])
    return with_smallest_step(estimate, [*logs_a.values(), *logs_b.values()])


def _logs(steps: Mapping[int, float | None]) -> dict[int, float]:
    """Return the logarithms of steps by seed, without the seeds that have none."""
    return {seed: math.log(count) for seed, count in steps.items() if count is not None}


def obstacles(a: CellResult, b: CellResult, goal: float) -> list[str]:
    """Return why the steps to a goal can't be compared, nothing if they can."""
    if a.target is None or a.target != b.target:
        return ["no target metric that both sides have"]
    name = f"{a.target.name} {goal:g}"
    steps_a, steps_b = steps_by_seed(a, goal), steps_by_seed(b, goal)
    for letter, steps in (("A", steps_a), ("B", steps_b)):
        if not steps:
            return [f"steps to {name}: no evaluations of {letter} (a baseline keeps none)"]
    if not set(steps_a) & set(steps_b):
        return [f"steps to {name}: no seed that both sides have evaluated"]
    remarks = []
    for letter, steps in (("A", steps_a), ("B", steps_b)):
        seeds = [str(seed) for seed, count in steps.items() if not count]
        if seeds:
            remarks.append(
                f"steps to {name}: seed {', '.join(seeds)} of {letter} never reached it, or had before"
                " the first step"
            )
    return remarks
