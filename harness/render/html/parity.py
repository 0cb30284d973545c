"""The section of the report that shows how alike the cells compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.parity import CellParity
from harness.render import parity as texts
from harness.render.html.report import Report
from harness.render.html.rows import Badge
from harness.spec.cell import Cell


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """A reference, and the cells that are held against it."""

    title: str
    note: str  # how well they can be held against it
    columns: Sequence[str]
    # The name of a cell, its rung, and the texts of the columns after these two.
    rows: Sequence[tuple[str, Badge, Sequence[str]]]


def ladders(report: Report) -> list[Ladder]:
    """Return a ladder for each reference; none without a measured parity."""
    if report.parity is None:
        return []
    rows = []
    for reference in report.parity.references:
        cells = [cell for cell in report.parity.cells if cell.reference == reference.cell.id]
        rows.append(
            Ladder(
                title=f"against {reference.cell.label}",
                note=texts.reference_line(reference),
                columns=texts.COLUMNS,
                rows=[_row(reference.cell, cell) for cell in cells],
            )
        )
    return rows


def _row(reference: Cell, cell: CellParity) -> tuple[str, Badge, Sequence[str]]:
    """Return the row of a cell."""
    badge = Badge(texts.rung_label(cell), texts.rung_look(cell))
    return texts.name(reference, cell.cell), badge, texts.evidence(cell)
