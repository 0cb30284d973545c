"""How alike a sweep's cells compute, as texts and as a table: for the terminal, the report and MLflow."""

from __future__ import annotations

from harness.analysis.cells import naming_axes
from harness.analysis.parity import (
    CellParity,
    FirstDifference,
    Reference,
    SweepParity,
)
from harness.analysis.rungs import TensorDistance
from harness.core.text import counted
from harness.render.console import TerminalConsole, show_table
from harness.render.format import MISSING, cell_name, three_digits
from harness.render.table import Look, Styled, Table
from harness.spec.cell import Cell

UNKNOWN = "can't tell"
COLUMNS = ("cell", "rung", "diverges in", "differs in", "error", "over seeds")


def name(reference: Cell, cell: Cell) -> str:
    """Return a cell by what it has other than its reference: `ddp×4 bucket_cap_mb=0.01`."""
    return cell_name(cell, naming_axes([reference, cell])) or cell.label


def rung_label(cell: CellParity) -> str:
    """Return the rung of a cell, or why it has none."""
    if cell.failure is not None:
        return "failed"
    if cell.by_design:
        return "by design"
    return cell.rung or UNKNOWN


def rung_look(cell: CellParity) -> Look:
    """Return how a rung looks: better, same, worse, failed, or open where it can't be told."""
    if cell.failure is not None:
        return "failed"
    if cell.rung in ("bitwise", "rounding"):
        return "better"
    if cell.rung == "equivalent":
        return "same"
    return "worse" if cell.rung == "different" else "open"


def divergence_text(difference: FirstDifference | None) -> str:
    """Return where two trials diverge: `step 2, all-reduce`."""
    if difference is None:
        return MISSING
    return f"step {difference.step}, {difference.phase}"


def differing(cell: CellParity) -> str:
    """Return the axes in which a cell differs from its reference."""
    if cell.by_design:
        return f"other {', '.join(cell.by_design)}"
    return ", ".join(cell.differing) or MISSING


def error(distance: TensorDistance | None) -> str:
    """Return a tensor's error as a multiple of the reference's own, both against fp64: `1.2×`."""
    if distance is None:
        return MISSING
    if not distance.is_finite:
        return "not finite"
    if distance.error is None or distance.reference_error is None:
        return MISSING
    if distance.reference_error == 0:
        return f"{distance.error:.2g}"
    return f"{three_digits(distance.error / distance.reference_error)}×"


def over_seeds(cell: CellParity) -> str:
    """Return what seeds say of a cell, where they are needed: `accuracy +0.0012 ± 0.0030`."""
    if cell.tensor_rung is not None or not cell.is_compared:
        return MISSING
    if cell.seeds is None:
        return "needs records of 2 seeds or more"
    verdict = cell.seeds
    seeds = counted(verdict.estimate.count, "seed")
    interval = f"({verdict.low:+.4f} to {verdict.high:+.4f})"
    return f"{verdict.metric.name} {verdict.effect:+.4f} in {seeds} {interval}"


def parity_table(parity: SweepParity, reference: Reference) -> Table:
    """Return the table of the cells that are compared with a reference."""
    table = Table(COLUMNS, ["error"])
    for cell in parity.cells:
        if cell.reference != reference.cell.id:
            continue
        evidence = [MISSING, cell.failure or MISSING, MISSING, MISSING]
        if cell.failure is None:
            evidence = [
                divergence_text(cell.first_difference),
                differing(cell),
                error(cell.worst),
                over_seeds(cell),
            ]
        rung = Styled(rung_label(cell), rung_look(cell))
        table.add_row(name(reference.cell, cell.cell), rung, *evidence)
    return table


def reference_line(reference: Reference) -> str:
    """Return how reliable comparisons with a reference are."""
    if reference.control is None:
        control = "twice the same bits"
    else:
        control = (
            f"not deterministic: run twice, it diverges in {divergence_text(reference.control)}"
        )
    if reference.fp64_problem is not None:
        control += f"; nothing was compared with fp64: {reference.fp64_problem}"
    return control


def rule_lines(parity: SweepParity) -> list[str]:
    """Return what the rungs mean, with the bounds that were used."""
    steps = ", ".join(map(str, parity.references[0].steps)) if parity.references else ""
    return [
        "rounding: no tensor's error against a run in fp64 is more than 2 times the reference's (3 times"
        f" below 1,000 elements), after steps {steps}",
        f"equivalent: over seeds, the target metrics differ by less than {parity.margin:g}, shown by"
        " TOST at 5%",
    ]


def show_cell(console: TerminalConsole, cell: CellParity) -> None:
    """Print the rung of a cell that has just been compared."""
    console.print_text(f"{cell.cell.label}: {rung_label(cell)}")


def show_parity(console: TerminalConsole, parity: SweepParity) -> None:
    """Print a table for each reference, with the cells that were compared with it."""
    for reference in parity.references:
        line = f"against {reference.cell.label}, {reference_line(reference)}"
        console.print_text(line)
        show_table(console, parity_table(parity, reference))
        console.print()
    for line in rule_lines(parity):
        console.print_text(line, "quiet")
