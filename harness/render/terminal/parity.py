"""Shows `harness parity`: the rung of each cell of a sweep, and what is known of why."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape

from harness.analysis.parity import CellParity, SweepParity
from harness.render import parity as texts
from harness.render.terminal.table import show as show_table


def show_cell(console: Console, cell: CellParity) -> None:
    """Print the rung of a cell that has just been compared."""
    console.print(f"{escape(cell.cell.label)}: {texts.rung_label(cell)}", soft_wrap=True)


def show_parity(console: Console, parity: SweepParity) -> None:
    """Print a table for each reference, with the cells that were held against it."""
    for reference in parity.references:
        line = f"against {reference.cell.label}, {texts.reference_line(reference)}"
        console.print(escape(line), soft_wrap=True)
        show_table(console, texts.parity_table(parity, reference))
        console.print()
    for line in [*texts.rule_lines(parity), *texts.hints(parity)]:
        console.print(f"[dim]{escape(line)}[/]", soft_wrap=True)


def to_json(parity: SweepParity) -> dict[str, Any]:
    """Return the parity as JSON can hold it, with each cell's id and rung."""
    content = asdict(parity)
    for entry, cell in zip(content["cells"], parity.cells, strict=True):
        entry["id"], entry["rung"] = cell.cell.id, cell.rung
    return content


def print_json(parity: SweepParity) -> None:
    """Print the parity as JSON."""
    print(json.dumps(to_json(parity), indent=1, default=str))
