"""What each axis of a sweep contributes: attribution of the throughputs of its trials.

The model and its fit are in `harness.statistics.attribution`; here trials become its points. Each
workload is a model of its own, as their throughputs have nothing in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.analysis.compare import Side
from harness.analysis.result import CellResult
from harness.core.errors import BadInput
from harness.spec.cell import axis_names
from harness.statistics.attribution import Attribution, Point, attribute

COMPANY = "company"  # the axis that says what ran beside a trial


def attributions(side: Side) -> dict[str, Attribution]:
    """Return the attribution of each workload that allows one, by its label.

    Its cells have to differ in an axis, and it needs more trials than the model has parameters.
    """
    axes = axis_names(result.cell for result in side.cells)
    points: dict[str, list[Point]] = {}
    for result in side.cells:
        points.setdefault(result.cell.workload.label, []).extend(_points(result, axes))
    by_workload = {}
    for workload, workload_points in points.items():
        attribution = attribute(workload_points) if workload_points else None
        if attribution is not None and attribution.effects:
            by_workload[workload] = attribution
    return by_workload


def _points(result: CellResult, axes: Sequence[str]) -> list[Point]:
    """Return a point for each measured trial of a cell.

    Trials of all cells with the same seed and repeat ran interleaved and are one block: what the
    machine did meanwhile, and what the seed brings, is common to them. What ran beside a trial counts
    as one more axis, which matters where trials had different company.
    """
    levels = {axis: result.cell.level(axis) for axis in axes}
    points = []
    for trial, log_throughput in zip(result.measured_trials, result.log_throughputs, strict=True):
        block = (trial.seed, trial.repeat)
        with_company = {**levels, COMPANY: trial.company}
        points.append(Point(levels=with_company, block=block, value=log_throughput))
    return points


def effects(side: Side) -> Mapping[str, Attribution]:
    """Return the same; raises BadInput where there is nothing to attribute."""
    by_workload = attributions(side)
    if not by_workload:
        raise BadInput(
            f"{side.name}: found too few trials to tell effects from noise;"
            " allowed: cells that differ in an axis, and more seeds or repeats"
        )
    return by_workload
