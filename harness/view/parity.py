"""Shows how alike a sweep's cells compute: for the terminal, the report and MLflow."""

from __future__ import annotations

from harness.analysis.cells import naming_axes
from harness.analysis.parity import CellParity, FirstDifference, Reference, SweepParity
from harness.analysis.rungs import TensorDistance
from harness.core.text import counted
from harness.sweep.cell import Cell
from harness.view.names import cell_name
from harness.view.value import Styled, effect_of, styled, three_digits
from harness.view.view import Table, View


def parity_view(parity: SweepParity) -> View:
    """Return a table for each reference, with the cells that were compared with it."""
    steps = ""
    if parity.references:
        steps = ", ".join(map(str, parity.references[0].steps))
    rules = (
        "rounding: no tensor's error against a run in fp64 is more than 2 times the reference's (3 times"
        f" below 1,000 elements), after steps {steps}; equivalent: over seeds, the target metrics differ"
        f" by less than {parity.margin:g}, shown by TOST at 5%"
    )
    tables = [parity_table(parity, reference) for reference in parity.references]
    return View(result=parity, tables=tables, lines=[Styled(rules, "quiet")])


def reference_line(reference: Reference) -> str:
    """Return what cells are compared with, and how reliable that is."""
    line = f"against {reference.cell.label}, "
    if reference.control is None:
        line += "twice the same bits"
    else:
        line += f"not deterministic: run twice, it diverges in {_moment(reference.control)}"
    if reference.fp64_problem is not None:
        line += f"; nothing was compared with fp64: {reference.fp64_problem}"
    return line


def parity_table(parity: SweepParity, reference: Reference) -> Table:
    """Return the table of the cells that are compared with a reference."""
    columns = ["cell", "rung", "diverges in", "differs in", "error", "over seeds"]
    table = Table(columns, {"error": "number"}, title=reference_line(reference))
    for cell in parity.cells:
        if cell.reference != reference.cell.id:
            continue
        differing = cell.failure or ", ".join(cell.differing) or None
        if cell.by_design:
            differing = f"other {', '.join(cell.by_design)}"
        axes = naming_axes([reference.cell, cell.cell])
        name = cell_name(cell.cell, axes) or cell.cell.label
        table.add_row(
            name,
            rung_badge(cell),
            _moment(cell.first_difference),
            differing,
            relative_error(cell.worst),
            over_seeds(cell),
        )
    return table


def rung_badge(cell: CellParity) -> Styled:
    """Return the rung of a cell, or why it has none."""
    if cell.failure is not None:
        return styled("failed")
    if cell.by_design:
        return styled("by design")
    return styled(cell.rung or "can't tell")


def cell_rung(parity: SweepParity | None, cell: Cell) -> Styled | None:
    """Return how alike a cell computes to its reference, None where that was not measured."""
    if parity is None:
        return None
    if parity.is_reference(cell):
        return styled("reference")
    measured = parity.of(cell)
    return None if measured is None else rung_badge(measured)


def _moment(difference: FirstDifference | None) -> str | None:
    """Return where two trials diverge: `step 2, all-reduce`."""
    if difference is None:
        return None
    return f"step {difference.step}, {difference.phase}"


def relative_error(distance: TensorDistance | None) -> str | None:
    """Return a tensor's error as a multiple of the reference's own, both against fp64: `1.2×`."""
    if distance is None:
        return None
    if not distance.is_finite:
        return "not finite"
    if distance.error is None or distance.reference_error is None:
        return None
    if distance.reference_error == 0:
        return f"{distance.error:.2g}"
    ratio = distance.error / distance.reference_error
    return f"{three_digits(ratio)}×"


def over_seeds(cell: CellParity) -> str | None:
    """Return what seeds say of a cell, where they are needed: `accuracy +0.0012 (…) in 3 seeds`."""
    if cell.tensor_rung is not None or not cell.is_compared:
        return None
    if cell.seeds is None:
        return "needs records of 2 seeds or more"
    verdict = cell.seeds
    seeds = counted(verdict.estimate.count, "seed")
    return f"{verdict.metric.name} {effect_of(verdict)} in {seeds}"
