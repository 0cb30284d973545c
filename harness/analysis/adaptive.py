"""Repeats until every cell is known well enough, or time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.core.errors import BadInput, parse_percentage
from harness.records.record import Record
from harness.spec.sweep import MOST_REPEATS, Sweep
from harness.statistics.sequential import confidence_sequence

FEWEST = 3  # trials, below which luck is mistaken for precision


Run = Callable[
    [Sweep, bool], list[Record]
]  # told whether these are more repeats of what it has run before


@dataclass(frozen=True, kw_only=True)
class Goal:
    """Half the width of a cell's interval, as a fraction of its throughput, and the seconds that may be spent on it."""

    half_width: float
    budget: float | None = None


def goal(until: str, budget: float | None) -> Goal | None:
    """From `--until` and `--budget` in minutes, or None without them; raises BadInput."""
    if not until and budget is not None:
        raise BadInput("--budget: found without --until; allowed: --until PERCENT --budget MINUTES")
    seconds = None if budget is None else budget * 60
    return Goal(half_width=parse_percentage(until, "--until"), budget=seconds) if until else None


def run_until(
    goal: Goal | None, sweep: Sweep, run: Run, clock: Callable[[], float] = time.monotonic
) -> tuple[Sweep, list[Record]]:
    """Run the sweep, then a repeat more at a time until the goal is reached or the budget won't last for another;
    returns the sweep as it has become, with its records.

    Looking after every repeat would narrow an ordinary interval by luck, so the cells' intervals are confidence
    sequences over their trials (`harness.statistics.sequential`). A cell of which nothing was measured ends it.
    """
    began = clock()
    records = run(sweep, False)
    while goal is not None and not reached(goal, sweep, records) and sweep.repeats < MOST_REPEATS:
        left = math.inf if goal.budget is None else goal.budget - (clock() - began)
        if next_repeat(sweep, records) > left or any(
            not _logs(records, cell.id) for cell in sweep.cells
        ):
            break
        sweep = replace(sweep, repeats=sweep.repeats + 1)
        records = run(sweep, True)
    return sweep, records


def reached(goal: Goal | None, sweep: Sweep, records: Sequence[Record]) -> bool:
    return goal is None or all(
        half_width(_logs(records, cell.id)) <= goal.half_width for cell in sweep.cells
    )


def describe_precision(goal: Goal, sweep: Sweep, records: Sequence[Record]) -> str:
    """How well the cell is known that is known least, in words: the table's intervals count no looks."""
    logs = {cell.label: _logs(records, cell.id) for cell in sweep.cells}
    label = max(logs, key=lambda name: half_width(logs[name]))
    width = half_width(logs[label])
    least = " least" if len(logs) > 1 else ""
    asked = f"--until: ±{goal.half_width:.1%}"
    if not math.isfinite(width):
        return f"{label}: {len(logs[label])} trials, no interval before {FEWEST}; {asked}"
    return f"{label}: known{least} to ±{width:.1%} after {len(logs[label])} trials, every look counted; {asked}"


def half_width(logs: Sequence[float]) -> float:
    """Half the width of the confidence sequence of a cell, relative; infinite for few trials."""
    if len(logs) < FEWEST:
        return math.inf
    low, high = confidence_sequence(np.asarray(logs))
    return float(np.expm1((high[-1] - low[-1]) / 2))


def next_repeat(sweep: Sweep, records: Sequence[Record]) -> float:
    """Seconds that a further repeat may take: as long as the longest block so far for each of the seeds."""
    spent: dict[tuple[int, int], float] = {}
    for record in records:
        block = (record.trial.seed, record.trial.repeat)
        spent[block] = spent.get(block, 0.0) + record.ended - record.started
    return max(spent.values(), default=0.0) * len(sweep.seeds)


def _logs(records: Sequence[Record], cell_id: str) -> list[float]:
    """Of the cell's trials in the order they ran."""
    own = sorted(
        (r for r in records if r.trial.cell.id == cell_id and r.status == "done"),
        key=lambda r: r.started,
    )
    return [math.log(r.summary.throughput) for r in own if r.summary and r.summary.throughput]
