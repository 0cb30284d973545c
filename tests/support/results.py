"""Makes results of cells that never ran, with the numbers that a test needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.analysis.result import CellResult, MetricPoint, TrialRow
from harness.records.numbers import RATES, final_name
from harness.records.record import TargetMetric
from harness.sweep.cell import Cell
from tests.factories import BEGUN, make_cell

TARGET = TargetMetric(name="accuracy", higher_is_better=True)
HARDWARE = "Test-CPU-2-cores"


def make_result(
    speeds: Sequence[float | None],
    *,
    cell: Cell | None = None,
    metrics: Sequence[float] | None = None,
    bits: str = "",
    started: Sequence[float] | None = None,
    courses: Sequence[Sequence[tuple[int, float]]] = (),
    hardware: str = HARDWARE,
    target: TargetMetric = TARGET,
    **changes: Any,
) -> CellResult:
    """A trial a speed, each of another seed, begun every 100 s; `bits` tell final
    parameters apart. `courses` are the steps and values of a trial's evaluations.
    """
    cell = cell or make_cell()
    begun = started or [BEGUN + 100 * seed for seed in range(len(speeds))]
    accuracies = metrics or [0.9] * len(speeds)
    trials = []
    for seed, speed in enumerate(speeds):
        course = courses[seed] if courses else ()
        row = TrialRow(
            sweep="demo",
            trial=f"{cell.id}-s{seed}-r0",
            cell=cell.id,
            workload=cell.workload.label,
            seed=seed,
            repeat=0,
            status="done",
            attempt=1,
            started=begun[seed],
            ended=begun[seed] + 10,
            nodes=1,
            hardware=hardware,
            numbers={},
            target=target,
            settled=True,
            parameter_digest=f"{bits}{seed}",
            order_digest=f"{seed:032x}",
            improvements=[MetricPoint(step=step, value=value) for step, value in course],
            test_samples=1000,
        )
        trials.append(with_numbers(row, throughput=speed, metric=accuracies[seed]))
    return CellResult(cell=cell, **{"trials": trials, "left_out": {}, **changes})


def with_numbers(
    row: TrialRow, *, throughput: float | None = None, metric: float | None = None
) -> TrialRow:
    """Return a row with these numbers, in place of its own where it has them."""
    numbers = dict(row.numbers)
    if throughput is not None:
        numbers[RATES[row.throughput_unit]] = throughput
    if metric is not None and row.target is not None:
        numbers[final_name(row.target.name)] = metric
    return replace(row, numbers=numbers)
