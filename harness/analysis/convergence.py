"""How many steps two cells need until the target metric reaches a goal, compared over seeds.

MLPerf's check of convergence is one-sided: it refuses what converges faster than its reference. Here
the question is two-sided, because a change that needs fewer steps has changed what is computed too.

A seed that never reached the goal has no number of steps, only a lower bound: it is censored. To leave
it out would compare the lucky seeds only, so that no verdict is given where either cell has one. Nor
is one where a script had reached the goal before its first step: 0 steps have no ratio to others.
"""

from __future__ import annotations

import math
from statistics import fmean

from harness.analysis.questions import are_identical, with_smallest_step
from harness.analysis.result import CellResult
from harness.statistics.estimate import certain_zero, paired
from harness.statistics.verdict import Metric, Question

STEPS_MARGIN = 0.1  # the smallest change of steps that matters, a fraction


def steps_by_seed(cell: CellResult, goal: float) -> dict[int, float]:
    """Return the steps until the goal by seed, in the mean of its repeats; 0 if one never was there.

    Steps are those of the first evaluation that shows it. Trials without evaluations are left out.
    """
    by_seed: dict[int, list[int]] = {}
    for trial in cell.trials:
        if trial.target is None or not trial.improvements:
            continue
        reached = [0]
        for point in trial.improvements:
            if trial.target.score(point.value) >= trial.target.score(goal):
                reached = [point.step]
                break
        by_seed.setdefault(trial.seed, []).extend(reached)
    return {seed: fmean(steps) if all(steps) else 0.0 for seed, steps in by_seed.items()}


def steps_question(a: CellResult, b: CellResult, goal: float) -> Question | str:
    """Return the question of the log ratio of steps to a goal, over the seeds in common in pairs.

    Where it can't be asked, return why. The same bits converge alike, however few seeds there are. Steps
    are known to the next evaluation only, so that their spread is at least the smallest step; if all
    reached the goal at the same evaluation, nothing is known of it.
    """
    if a.target is None or a.target != b.target:
        return "no target metric that both sides have"
    name = f"steps to {a.target.name} {goal:g}"
    steps_a, steps_b = steps_by_seed(a, goal), steps_by_seed(b, goal)
    common = [seed for seed in steps_a if seed in steps_b]
    if not common:
        return f"{name}: no seed that both sides have evaluated; a baseline keeps no evaluations"
    unreached = [f"seed {seed} of A" for seed, count in steps_a.items() if not count]
    unreached += [f"seed {seed} of B" for seed, count in steps_b.items() if not count]
    if unreached:
        return f"{name}: {', '.join(unreached)} never reached it, or had before the first step"
    logs_a = {seed: math.log(count) for seed, count in steps_a.items()}
    logs_b = {seed: math.log(count) for seed, count in steps_b.items()}
    estimate = certain_zero(len(common))
    if not are_identical(a, b):
        differences = paired([logs_b[seed] - logs_a[seed] for seed in common])
        estimate = with_smallest_step(differences, [*logs_a.values(), *logs_b.values()])
    return Question(
        metric=Metric(
            name=name,
            higher_is_better=False,
            relative=True,
            min_effect=STEPS_MARGIN,
            better="converges faster",
            worse="converges slower",
        ),
        estimate=estimate,
        mean_a=math.exp(fmean(logs_a[seed] for seed in common)),
        mean_b=math.exp(fmean(logs_b[seed] for seed in common)),
    )
