"""Shows `harness diff audit`: which settings change bits, and what deterministic training costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape

from harness.analysis.parity import CellParity, Reference, SweepParity
from harness.core.text import counted
from harness.gate.tax import Tax
from harness.render import parity as texts
from harness.render.format import MISSING
from harness.render.parity import to_json as parity_to_json
from harness.render.table import Content, Look, Styled, Table
from harness.render.terminal.table import show as show_table
from harness.reproduce.audit import turned
from harness.spec.cell import Cell

COLUMNS = ("turned", "same bits?", "rung", "they part in", "likely cause", "error")
# What a rung says of bits.
ANSWERS = {"bitwise": "bitwise", "ulp": "within tolerance", "fp64": "within tolerance"}
NEITHER = "neither"
LOOKS: Mapping[str, Look] = {
    "bitwise": "better",
    "within tolerance": "open",
    NEITHER: "failed",
    "failed": "failed",
}


def show_audit(console: Console, parity: SweepParity, taxes: Sequence[Tax]) -> None:
    """Print a table for each reference, then the costs."""
    for reference in parity.references:
        console.print(f"against {escape(reference.cell.label)}", soft_wrap=True)
        table = Table(COLUMNS, ["error"])
        table.add_row(*relaunch_row(reference))
        for cell in parity.cells:
            if cell.reference == reference.cell.id:
                table.add_row(*row(reference.cell, cell))
        show_table(console, table)
        console.print()
    for cell in parity.cells:
        if cell.failure is not None:
            line = f"{cell.cell.label} failed: {cell.failure}"
            console.print(f"[red]{escape(line)}[/]", soft_wrap=True)
    for line in [*texts.rule_lines(parity)[:1], *texts.hints(parity)]:
        console.print(f"[dim]{escape(line)}[/]", soft_wrap=True)
    for tax in taxes:
        console.print(escape(tax_line(tax)), soft_wrap=True)


def relaunch_row(reference: Reference) -> list[Content]:
    """Return the row of the reference's second run."""
    answer = "bitwise" if reference.control is None else NEITHER
    cause = MISSING if reference.control is None else "not deterministic"
    return [
        "nothing: run again",
        Styled(answer, LOOKS[answer]),
        "bitwise" if reference.control is None else texts.UNKNOWN,
        texts.parting(reference.control),
        cause,
        MISSING,
    ]


def row(reference: Cell, cell: CellParity) -> list[Content]:
    """Return the row of a cell: what was turned, and what that did."""
    answer = answer_of(cell)
    return [
        describe_turn(reference, cell.cell),
        Styled(answer, LOOKS[answer]),
        texts.rung_label(cell),
        texts.parting(cell.first_difference),
        texts.causes(cell),
        texts.error(cell.worst),
    ]


def answer_of(cell: CellParity) -> str:
    """Return whether a setting kept the bits, kept to the tolerance, or neither."""
    if cell.failure is not None:
        return "failed"
    return ANSWERS.get(cell.rung or "", NEITHER)


def describe_turn(reference: Cell, cell: Cell) -> str:
    """Return the settings in which a cell differs from its reference: `num_workers 0 → 2`."""
    parts = []
    for name, (before, after) in turned(reference, cell).items():
        parts.append(f"{name} {_value(before)} → {_value(after)}")
    return ", ".join(parts)


def _value(value: Any) -> str:
    """Return a setting's value as a sweep file has it."""
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)


def tax_line(tax: Tax) -> str:
    """Return what a setting costs, with its interval."""
    measured = tax.measured
    turn = describe_turn(tax.reference, tax.cell)
    where = f"{tax.reference.label}, {counted(measured.pairs, 'pair')}, {measured.seconds:.0f} s"
    if measured.ratio is None:
        return f"{turn}: the cost could not be measured ({where})"
    cost = f"{turn}: throughput {measured.ratio - 1:+.1%}"
    if measured.low is not None and measured.high is not None:
        cost += f" [{measured.low - 1:+.1%}, {measured.high - 1:+.1%}]"
    return f"{cost} ({where})"


def to_json(parity: SweepParity, taxes: Sequence[Tax]) -> dict[str, Any]:
    """Return an audit as JSON can hold it."""
    content = parity_to_json(parity)
    references = {reference.cell.id: reference.cell for reference in parity.references}
    for entry, cell in zip(content["cells"], parity.cells, strict=True):
        entry["turned"] = dict(turned(references[cell.reference], cell.cell))
        entry["answer"] = answer_of(cell)
    return {"parity": content, "taxes": [_tax_to_json(tax) for tax in taxes]}


def _tax_to_json(tax: Tax) -> Mapping[str, Any]:
    """Return a cost as JSON can hold it."""
    return {
        "setting": tax.setting,
        "reference": tax.reference.id,
        "cell": tax.cell.id,
        "label": tax.cell.label,
        "measured": asdict(tax.measured),
    }
