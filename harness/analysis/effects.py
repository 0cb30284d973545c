"""What each axis of a sweep contributes: attribution of the throughputs of its trials.

The model and its fit are in `harness.statistics.attribution`; here trials become its points. Each
workload has its own model, because throughputs of different workloads have nothing in common.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from harness.analysis.compare import Side
from harness.analysis.result import CellResult
from harness.core.errors import BadInput
from harness.spec.cell import Cell, axis_names, level_reader
from harness.statistics.attribution import Attribution, TrialThroughput, attribute

COMPANY = "company"  # the axis that says what else ran on the machine


def attributions(side: Side) -> dict[str, Attribution]:
    """Return the attribution of each workload that allows one, by its label.

    Its cells have to differ in an axis, and it needs more trials than the model has parameters.
    """
    names = axis_names(result.cell for result in side.cells)
    axes = {axis: level_reader(axis) for axis in names}
    points: dict[str, list[TrialThroughput]] = {}
    for result in side.cells:
        points.setdefault(result.cell.workload.label, []).extend(_points(result, axes))
    by_workload = {}
    for workload, workload_points in points.items():
        attribution = attribute(workload_points) if workload_points else None
        if attribution is not None and attribution.effects:
            by_workload[workload] = attribution
    return by_workload


def _points(
    result: CellResult, axes: Mapping[str, Callable[[Cell], Hashable]]
) -> list[TrialThroughput]:
    """Return a point for each measured trial of a cell.

    Trials of all cells with the same seed and repeat ran interleaved and are one block: they have
    the seed and the drift of the machine in common. What else ran on the machine counts as one more
    axis, which matters where it differs between trials. `axes` are the functions that read the
    values of axes, by name.
    """
    levels_of_cell = {axis: read(result.cell) for axis, read in axes.items()}
    points = []
    for trial, log_throughput in zip(result.measured_trials, result.log_throughputs, strict=True):
        block = (trial.seed, trial.repeat)
        levels = {**levels_of_cell, COMPANY: trial.company}
        points.append(TrialThroughput(levels=levels, block=block, value=log_throughput))
    return points


def effects(side: Side) -> Mapping[str, Attribution]:
    """Return what `attributions` returns; raises BadInput if it is empty."""
    by_workload = attributions(side)
    if not by_workload:
        raise BadInput(
            f"{side.name}: found too few trials to tell effects from noise;"
            " allowed: cells that differ in an axis, and more seeds or repeats"
        )
    return by_workload
