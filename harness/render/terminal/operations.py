"""Shows the catalogue of operations: which are repeatable, and what changes the bits of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape

from harness.core.text import counted
from harness.render.format import MISSING
from harness.render.table import Table
from harness.render.terminal.table import show as show_table
from harness.reproduce.catalog import (
    REPEATS,
    OperationGroup,
    OperationResult,
    group_operations,
)

COLUMNS = ("operation", "type", "sizes", "in every run", "at other addresses", "with other threads")
SAME = "the same"
OTHER = "other bits"


def show_operations(
    console: Console, by_workload: Mapping[str, Sequence[OperationResult]], *, every: bool
) -> None:
    """Print what was measured: all operations, or those whose bits something changes."""
    groups = group_operations(by_workload)
    shown = [group for group in groups if every or not group.worst.is_exact]
    if shown:
        table = Table(COLUMNS, [])
        for group in shown:
            table.add_row(*row(group))
        show_table(console, table)
    for line in summary_lines(groups, shown):
        console.print(escape(line), soft_wrap=True)


def row(group: OperationGroup) -> list[str]:
    """Return the columns of a group, by its worst result."""
    worst = group.worst
    return [
        group.operation,
        group.dtype,
        _sizes(group),
        worst.unrepeatable_at() or SAME,
        OTHER if worst.depends_on_placement else SAME,
        _threads(worst),
    ]


def _sizes(group: OperationGroup) -> str:
    """Return the sizes of the worst result, and how many others there are."""
    more = len(group.results) - 1
    if not more:
        return group.worst.sizes
    return f"{group.worst.sizes} and {more} more"


def _threads(result: OperationResult) -> str:
    """Return whether the number of threads changes bits; unknown of what does not repeat."""
    if not result.is_repeatable:
        return MISSING
    return OTHER if result.depends_on_threads else SAME


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
        texts = [f"{name} ({', '.join(dtypes)})" for name, dtypes in names.items()]
        lines.append(f"always the same bits: {', '.join(texts)}")
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
