"""Makes results of cells that never ran, with the numbers that a test needs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from harness.analysis.result import CellResult, MetricPoint, TrialResult
from harness.records.record import TargetMetric
from harness.spec.cell import Cell
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
    every: float = 100.0,
    courses: Sequence[Sequence[tuple[int, float]]] = (),
    **changes: Any,
) -> CellResult:
    """A trial a speed, each of another seed, begun `every` so many seconds; `bits` tell final
    parameters apart. `courses` are the steps and values of a trial's evaluations.
    """
    begun = started or [BEGUN + every * seed for seed in range(len(speeds))]
    accuracies = metrics or [0.9] * len(speeds)
    trials = [
        TrialResult(
            sweep="demo",
            seed=seed,
            repeat=0,
            started=begun[seed],
            ended=begun[seed] + 10,
            throughput=speed,
            settled=True,
            window_steps=100,
            metric=accuracies[seed],
            parameter_digest=f"{bits}{seed}",
            order_digest=f"{seed:032x}",
            improvements=[MetricPoint(step=step, value=value) for step, value in course],
            test_samples=1000,
        )
        for seed, (speed, course) in enumerate(
            zip(speeds, courses or itertools.repeat(()), strict=False)
        )
    ]
    return CellResult(
        cell=cell or make_cell(),
        target=TARGET,
        **{"hardware": [HARDWARE], "trials": trials, "left_out": {}, **changes},
    )
