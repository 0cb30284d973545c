"""What cells and records have in common; loads neither NumPy nor SciPy, because plans use it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from harness.records.record import Record
from harness.spec.axes import AXES
from harness.spec.cell import Cell, axis_names
from harness.spec.sweep import Sweep

SAMPLE = 100  # cells that axes are first compared in


def varying_axes(cells: Sequence[Cell]) -> list[str]:
    """Return the names of the axes in which the cells differ, in the order of `axis_names`.

    These are the columns that a table of the cells needs; the others would say the same everywhere.
    """
    if not cells:
        return []
    varying = _varying_in_harness(cells)
    for axis in axis_names(cells):
        if axis not in AXES:
            level = cells[0].level(axis)
            if any(cell.level(axis) != level for cell in cells):
                varying.append(axis)
    return varying


def _varying_in_harness(cells: Sequence[Cell]) -> list[str]:
    """Return the names of the harness's own axes in which the cells differ.

    A few cells have most of the differences. The other axes have hardly any combinations, so that
    one pass over a hundred thousand cells collects them all.
    """
    sample = cells[:: max(1, len(cells) // SAMPLE)]
    varying = set()
    for axis in AXES:
        if len({cell.axes.value(axis) for cell in sample}) > 1:
            varying.add(axis)
    others = [axis for axis in AXES if axis not in varying]
    # Not by `vars`: of an axis that a recorded sweep does not have, decoded cells have the default as
    # an attribute of the class only. Of a single name, `attrgetter` would return no tuple.
    read = attrgetter(*others, "strategy")
    combinations = {read(cell.axes) for cell in cells}
    for axis, levels in zip(others, zip(*combinations, strict=True), strict=False):
        if len(set(levels)) > 1:
            varying.add(axis)
    return [axis for axis in AXES if axis in varying]


def differing_axes(a: Cell, b: Cell) -> list[str]:
    """Return the names of the axes in which two cells differ, by what is known of a script too."""
    return [name for name in axis_names([a, b]) if a.level(name) != b.level(name)]


def group_by_cell(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records by the id of their cell, in their order."""
    by_cell: dict[str, list[Record]] = {}
    for record in records:
        by_cell.setdefault(record.trial.cell.id, []).append(record)
    return by_cell


def shown_seeds(sweep: Sweep, records: Sequence[Record]) -> list[int]:
    """Return the seeds that the sweep asks for, then those that earlier commands have left."""
    recorded = sorted({record.trial.seed for record in records})
    return list(dict.fromkeys([*sweep.all_seeds, *recorded]))


def naming_axes(cells: Sequence[Cell]) -> list[str]:
    """Return the varying axes that a cell's short name needs, for `format.cell_name`.

    A name spells strategy and ranks together, as in `ddp×2`, so that world_size is left out where
    strategy varies too.
    """
    varying = varying_axes(cells)
    if "strategy" in varying:
        return [axis for axis in varying if axis != "world_size"]
    return varying
