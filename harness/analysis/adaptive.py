"""Repeats a sweep until every cell is measured precisely enough, or time is up.

`harness run --until 2% --budget 30m` gives each cell as many repeats as its noise needs, instead of
a number that somebody has to guess beforehand.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from harness.analysis.result import trial_row
from harness.core.errors import BadInput, parse_percentage
from harness.core.text import counted, parse_duration
from harness.records.record import Record
from harness.statistics.interval import FEWEST_VALUES
from harness.statistics.sequential import confidence_sequence
from harness.sweep.sweep import Sweep
from harness.sweep.sweepfile import MAX_REPEATS

# Runs a sweep and returns its records. The flag says whether these are further repeats of what it
# has run before.
Run = Callable[[Sweep, bool], list[Record]]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The precision that every cell should reach, and the time limit."""

    half_width: float  # of a cell's interval, as a fraction of its throughput
    budget: float = math.inf  # seconds


def goal(until: str, budget: str) -> Goal | None:
    """Return the goal of `--until` and of `--budget` such as `30m`, None without them.

    Raises BadInput for no percentage, no duration, and a budget without a goal.
    """
    if until:
        seconds = parse_duration(budget, "--budget") if budget else math.inf
        return Goal(half_width=parse_percentage(until, "--until"), budget=seconds)
    if budget:
        allowed = "allowed: --until PERCENT --budget DURATION"
        raise BadInput(f"--budget: found without --until; {allowed}")
    return None


def run_until(
    goal: Goal | None,
    sweep: Sweep,
    run: Run,
    clock: Callable[[], float] = time.monotonic,
    *,
    fail_fast: bool = False,
) -> tuple[Sweep, list[Record]]:
    """Run the sweep, then a repeat at a time until the goal is reached.

    Stops earlier if the budget is too short for another repeat, or if a cell has no measurement; with
    `fail_fast`, also after a repeat in which a trial has failed.
    Intervals are checked after every repeat, which an ordinary interval does not allow, so they are
    confidence sequences over the cell's trials (`harness.statistics.sequential`).

    Returns the sweep with the number of repeats that it reached, and all its records.
    """
    started = clock()
    records = run(sweep, False)
    if goal is None:
        return sweep, records
    while not reached(goal, sweep, records):
        all_measured = all(_log_throughputs(sweep, records).values())
        if not all_measured or sweep.repeats >= MAX_REPEATS:
            break
        has_failed = any(record.status in ("failed", "interrupted") for record in records)
        if fail_fast and has_failed:
            break
        elapsed = clock() - started
        if elapsed + next_repeat_seconds(records) > goal.budget:
            break
        sweep = replace(sweep, repeats=sweep.repeats + 1)
        records = run(sweep, True)
    return sweep, records


def reached(
    goal: Goal | None,
    sweep: Sweep,
    records: Sequence[Record],
) -> bool:
    """Return whether every cell is measured as precisely as the goal asks; True without a goal."""
    if goal is None:
        return True
    by_cell = _log_throughputs(sweep, records)
    widths = map(half_width, by_cell.values())
    return max(widths) <= goal.half_width


def describe_precision(goal: Goal, sweep: Sweep, records: Sequence[Record]) -> str:
    """Return the precision of the least precise cell, by an interval that holds after every repeat.

    The intervals in the table of results are narrower, because they hold for a single look only.
    """
    by_cell = _log_throughputs(sweep, records)
    widths = {cell: half_width(by_cell[cell.id]) for cell in sweep.cells}
    cell = max(sweep.cells, key=widths.__getitem__)
    width = widths[cell]
    precision = f"±{width:.1%}" if width < 1 else "no interval within ±100%"
    trials = counted(len(by_cell[cell.id]), "trial")
    return (
        f"{cell.label}, the least precise: {precision} after {trials}, every look counted;"
        f" --until: ±{goal.half_width:.1%}"
    )


def _log_throughputs(sweep: Sweep, records: Sequence[Record]) -> dict[str, list[float]]:
    """Return the log throughputs of each cell's trials in the order in which they ran."""
    logs: dict[str, list[float]] = {}
    for cell in sweep.cells:
        logs[cell.id] = []
    in_order = sorted(records, key=attrgetter("started"))
    for record in in_order:
        cell_id = record.trial.cell.id
        if record.status != "done" or cell_id not in logs:
            continue
        throughput = trial_row(record).throughput
        if throughput:
            logs[cell_id].append(math.log(throughput))
    return logs


def half_width(logs: Sequence[float]) -> float:
    """Return half the width of a cell's confidence sequence as a fraction of its throughput.

    `logs` are the log throughputs of its trials; with fewer than `FEWEST_VALUES` the width is infinite.
    """
    if len(logs) < FEWEST_VALUES:
        return math.inf
    lows, highs = confidence_sequence(np.asarray(logs))
    log_half_width = (highs[-1] - lows[-1]) / 2
    return float(np.expm1(log_half_width))


def next_repeat_seconds(records: Sequence[Record]) -> float:
    """Estimate how long a further repeat, of all seeds, may take: as long as the longest so far.

    Time in which trials ran side by side counts once, and pauses, as between two commands, do not.
    """
    seconds: defaultdict[int, float] = defaultdict(float)
    for record in records:
        duration = record.ended - record.started
        seconds[record.trial.repeat] += duration / record.lane.count
    return max(seconds.values(), default=0.0)
