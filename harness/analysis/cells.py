"""What cells and records have in common; loads neither NumPy nor SciPy, because plans use it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import attrgetter

from harness.records.record import Record
from harness.sweep.axes import FIELDS
from harness.sweep.cell import Cell, axis_names
from harness.sweep.sweep import Sweep


def varying_axes(cells: Sequence[Cell]) -> list[str]:
    """Return the names of the axes in which the cells differ, in the order of `axis_names`.

    These are the columns that a table of the cells needs; the others would say the same everywhere.
    """
    changed: set[str] = set()
    for cell in cells:
        changed.update(cell.axes.changed)
    varying = []
    for axis in axis_names(cells):
        levels: set[Hashable] = set()
        if axis in changed:  # of a script too, whose own axes are not known
            level_of = attrgetter(f"axes.{FIELDS[axis]}")
            levels = set(map(level_of, cells))
        elif axis not in FIELDS:
            levels = {cell.level(axis) for cell in cells}
        if len(levels) > 1:
            varying.append(axis)
    return varying


def differing_axes(a: Cell, b: Cell) -> list[str]:
    """Return the names of the axes in which two cells differ, by what is known of a script too."""
    differing = []
    for axis in axis_names([a, b]):
        if a.level(axis) != b.level(axis):
            differing.append(axis)
    return differing


def group_by_cell(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records by the id of their cell, in their order."""
    by_cell: dict[str, list[Record]] = {}
    for record in records:
        of_cell = by_cell.setdefault(record.trial.cell.id, [])
        of_cell.append(record)
    return by_cell


def shown_seeds(sweep: Sweep, records: Sequence[Record]) -> list[int]:
    """Return the seeds that the sweep asks for, then those that earlier commands have left."""
    recorded = sorted({record.trial.seed for record in records})
    return list(dict.fromkeys([*sweep.all_seeds, *recorded]))


def naming_axes(cells: Sequence[Cell]) -> list[str]:
    """Return the varying axes that a cell's short name needs, for `harness.view.names`.

    A name spells strategy and ranks together, as in `ddp×2`, so that world_size is left out where
    strategy varies too.
    """
    varying = varying_axes(cells)
    if {"strategy", "world_size"} <= set(varying):
        varying.remove("world_size")
    return varying
