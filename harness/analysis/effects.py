"""What each axis of a sweep contributes: attribution of the throughputs of its trials.

The model and its fit are in `harness.statistics.attribution`; here trials become its points. Each
workload is a model of its own, as their throughputs have nothing in common.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from harness.analysis.compare import Side
from harness.analysis.result import CellResult
from harness.core.errors import BadInput
from harness.spec.cell import Cell, axis_names, level_reader
from harness.statistics.attribution import Attribution, Levels, TrialThroughput, attribute

COMPANY = "company"  # the axis that says what ran beside a trial


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

    Trials of all cells with the same seed and repeat ran interleaved and are one block: what the
    machine did meanwhile, and what the seed brings, is common to them. What ran beside a trial counts
    as one more axis, which matters where trials had different company. `axes` are the functions that
    read the values of axes, by name. Trials with the same company share their levels.
    """
    levels = {axis: read(result.cell) for axis, read in axes.items()}
    levels_by_company: dict[str, Levels] = {}
    points = []
    for trial, log_throughput in zip(result.measured_trials, result.log_throughputs, strict=True):
        block = (trial.seed, trial.repeat)
        if trial.company not in levels_by_company:
            levels_by_company[trial.company] = {**levels, COMPANY: trial.company}
        shared_levels = levels_by_company[trial.company]
        points.append(TrialThroughput(levels=shared_levels, block=block, value=log_throughput))
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
