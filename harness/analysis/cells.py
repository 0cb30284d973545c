"""What cells and records have in common; loads neither NumPy nor SciPy, because plans use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields

from harness.records.record import Record
from harness.spec.axes import Axes
from harness.spec.cell import Cell


def varying_axes(cells: Sequence[Cell]) -> list[str]:
    """Return the names of the axes in which the cells differ, in the order of `Axes`."""
    settings = [asdict(cell.axes) for cell in cells]
    names = [axis.name for axis in fields(Axes)]
    return [name for name in names if len({row[name] for row in settings}) > 1]


def group_by_cell(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records by the id of their cell, in their order."""
    by_cell: dict[str, list[Record]] = {}
    for record in records:
        by_cell.setdefault(record.trial.cell.id, []).append(record)
    return by_cell


def summary_values(records: Sequence[Record], field: str) -> list[float]:
    """Return a field of `Summary` for each record in which it was measured."""
    values = [getattr(record.summary, field) for record in records if record.summary]
    return [value for value in values if value is not None]


def naming_axes(cells: Sequence[Cell]) -> list[str]:
    """Return the varying axes that a cell's short name needs; strategy stands for the ranks too."""
    varying = varying_axes(cells)
    if "strategy" in varying:
        return [axis for axis in varying if axis != "world_size"]
    return varying
