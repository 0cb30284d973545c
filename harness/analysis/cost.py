"""What a cell costs, at the price of a rank's hour in the profile: an epoch, and a goal of the metric.

Costs have intervals and no verdicts: at one price they differ as throughput and steps do, on which
there are verdicts already, and at several the prices decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from harness.analysis.convergence import first_at_goal
from harness.analysis.result import CellResult
from harness.statistics.interval import Interval, geometric_mean_interval
from harness.statistics.trials import independent_values


@dataclass(frozen=True, kw_only=True)
class CostRow:
    """What two cells cost: geometric means with their 95% intervals over seeds."""

    name: str  # the currency and what for, as in USD/epoch
    a: Interval  # of the reference
    b: Interval  # of the cell that is judged

    @property
    def ratio(self) -> float:
        """Return the cost of B over that of A."""
        return self.b.mean / self.a.mean


def currency(cell: CellResult) -> str | None:
    """Return the currency of a cell's costs, None where its trials have none or several."""
    currencies = {trial.cost.currency for trial in cell.trials if trial.cost is not None}
    return currencies.pop() if len(currencies) == 1 else None


def epoch_cost(cell: CellResult) -> Interval | None:
    """Return what an epoch of steady steps costs, None where a trial's cost is unknown."""
    costs: dict[tuple[int, int], float | None] = {}
    for trial in cell.measured_trials:
        costs[trial.seed, trial.repeat] = None if trial.cost is None else trial.cost.epoch
    return _mean(costs)


def _mean(costs: Mapping[tuple[int, int], float | None]) -> Interval | None:
    """Return the geometric mean of costs by seed and repeat, None where one is unknown."""
    logs, seeds = [], []
    for (seed, _), cost in costs.items():
        if cost is None:
            return None
        logs.append(math.log(cost))
        seeds.append(seed)
    if not logs:
        return None
    return geometric_mean_interval([math.exp(log) for log in independent_values(logs, seeds)])


def cost_to_goal(cell: CellResult, goal: float) -> Interval | None:
    """Return what it costs until the goal, over seeds; None where the cost of a seed is unknown.

    That is where a trial never reached the goal or had reached it before training, was interrupted, or
    ran at no stated price.
    """
    costs: dict[tuple[int, int], float | None] = {}
    for trial in cell.trials:
        point = first_at_goal(cell, trial, goal)
        cost = None
        if point is not None and point.seconds is not None and trial.cost is not None:
            cost = point.seconds * trial.cost.per_second
        costs[trial.seed, trial.repeat] = cost
    return _mean(costs)


def cost_rows(a: CellResult, b: CellResult, goal: float | None) -> list[CostRow]:
    """Return what two cells cost for an epoch, and with a goal until it, as far as that is known."""
    unit = currency(a)
    if unit is None or unit != currency(b):
        return []
    costs = {f"{unit}/epoch": (epoch_cost(a), epoch_cost(b))}
    if goal is not None and a.target is not None and a.target == b.target:
        name = f"{unit} to {a.target.name} {goal:g}"
        costs[name] = cost_to_goal(a, goal), cost_to_goal(b, goal)
    rows = []
    for name, (cost_a, cost_b) in costs.items():
        if cost_a is not None and cost_b is not None:
            rows.append(CostRow(name=name, a=cost_a, b=cost_b))
    return rows
