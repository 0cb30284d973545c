"""Shows `harness audit`: what changes bits, settings or operations, and what determinism costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harness.analysis.compare import setting_differences
from harness.analysis.parity import CellParity, Reference, SweepParity
from harness.core.text import counted
from harness.gate.tax import Tax
from harness.render import parity as texts
from harness.render.console import TerminalConsole, show_table
from harness.render.format import MISSING
from harness.render.table import Content, Look, Styled, Table
from harness.reproduce.catalog import (
    REPEATS,
    OperationGroup,
    OperationResult,
    group_operations,
)
from harness.spec.cell import Cell, axis_value

COLUMNS = ("turned", "same bits?", "rung", "diverges in", "likely cause", "error")
# What a rung says of bits.
ANSWERS = {"bitwise": "bitwise", "ulp": "within tolerance", "fp64": "within tolerance"}
NEITHER = "neither"
LOOKS: Mapping[str, Look] = {
    "bitwise": "better",
    "within tolerance": "open",
    NEITHER: "failed",
    "failed": "failed",
}


def show_audit(console: TerminalConsole, parity: SweepParity, taxes: Sequence[Tax]) -> None:
    """Print a table for each reference, then the costs."""
    for reference in parity.references:
        console.print_text(f"against {reference.cell.label}")
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
            console.print_text(line, "failed")
    for line in [*texts.rule_lines(parity)[:1], *texts.hints(parity)]:
        console.print_text(line, "quiet")
    for tax in taxes:
        console.print_text(tax_line(tax))


def relaunch_row(reference: Reference) -> list[Content]:
    """Return the row of the reference's second run."""
    answer = "bitwise" if reference.control is None else NEITHER
    cause = MISSING if reference.control is None else "not deterministic"
    return [
        "nothing: run again",
        Styled(answer, LOOKS[answer]),
        "bitwise" if reference.control is None else texts.UNKNOWN,
        texts.divergence_text(reference.control),
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
        texts.divergence_text(cell.first_difference),
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
    for name, values in setting_differences(reference, cell).items():
        both = ["unset" if value is None else axis_value(value) for value in values]
        parts.append(f"{name} {' → '.join(both)}")
    return ", ".join(parts)


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
    content = texts.to_json(parity)
    references = {reference.cell.id: reference.cell for reference in parity.references}
    for entry, cell in zip(content["cells"], parity.cells, strict=True):
        entry["turned"] = dict(setting_differences(references[cell.reference], cell.cell))
        entry["answer"] = answer_of(cell)
    costs = []
    for tax in taxes:
        costs.append(
            {
                "setting": tax.setting,
                "reference": tax.reference.id,
                "cell": tax.cell.id,
                "label": tax.cell.label,
                "measured": asdict(tax.measured),
            }
        )
    return {"parity": content, "taxes": costs}


OPERATION_COLUMNS = (
    "operation",
    "type",
    "sizes",
    "in every run",
    "at other addresses",
    "with other threads",
)
SAME = "the same"
OTHER = "other bits"


def show_operations(
    console: TerminalConsole, by_workload: Mapping[str, Sequence[OperationResult]], *, every: bool
) -> None:
    """Print what was measured: all operations, or those whose bits something changes."""
    groups = group_operations(by_workload)
    shown = [group for group in groups if every or not group.worst.is_exact]
    if shown:
        table = Table(OPERATION_COLUMNS, [])
        for group in shown:
            table.add_row(*operation_row(group))
        show_table(console, table)
    for line in summary_lines(groups, shown):
        console.print_text(line)


def operation_row(group: OperationGroup) -> list[str]:
    """Return the columns of a group, by its worst result."""
    worst = group.worst
    sizes = worst.sizes
    if len(group.results) > 1:
        sizes += f" and {len(group.results) - 1} more"
    threads = MISSING  # unknown of what does not repeat
    if worst.is_repeatable:
        threads = OTHER if worst.depends_on_threads else SAME
    return [
        group.operation,
        group.dtype,
        sizes,
        worst.unrepeatable_at() or SAME,
        OTHER if worst.depends_on_placement else SAME,
        threads,
    ]


def summary_lines(groups: Sequence[OperationGroup], shown: Sequence[OperationGroup]) -> list[str]:
    """Return how much was measured, and the operations that no row is about."""
    sizes = sum(len(group.results) for group in groups)
    threads = [str(run.threads) for run in groups[0].results[0].runs] if groups else []
    lines = [
        f"{counted(len(groups), 'operation')} in {counted(sizes, 'size')}, each run"
        f" {REPEATS} times on aligned and {REPEATS} times on other addresses with"
        f" {', '.join(threads)} threads"
    ]
    names: dict[str, list[str]] = {}  # types by operation
    for group in groups:
        if group not in shown:
            names.setdefault(group.operation, []).append(group.dtype)
    if names:
        operations = [f"{name} ({', '.join(dtypes)})" for name, dtypes in names.items()]
        lines.append(f"always the same bits: {', '.join(operations)}")
    return lines


def operations_to_json(
    by_workload: Mapping[str, Sequence[OperationResult]],
) -> dict[str, list[dict[str, Any]]]:
    """Return all that was measured, by workload."""
    content: dict[str, list[dict[str, Any]]] = {}
    for label, results in by_workload.items():
        content[label] = []
        for result in results:
            conclusions = {
                "repeatable": result.is_repeatable,
                "depends_on_placement": result.depends_on_placement,
                "depends_on_threads": result.depends_on_threads,
            }
            content[label].append(asdict(result) | conclusions)
    return content
