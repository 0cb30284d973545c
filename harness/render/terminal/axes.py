"""`harness axes`: what a sweep can vary."""

from __future__ import annotations

import json
from typing import Any, get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.spec.axes import AXIS_TYPES, DEFAULTS, axis_choices, axis_help
from workloads.options import Between


def show() -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for axis in AXIS_TYPES:
        found = axis_help(axis)
        taken = Text(values(axis))
        if axis in DEFAULTS:
            taken.append(f"  default {word(DEFAULTS[axis])}", style="dim")
        needs = f" (needs {found.needs})" if found.needs else ""
        table.add_row(axis, Text.assemble(taken, "\n", found.does, needs))
    Console(highlight=False).print(table)


def word(value: Any) -> str:
    """As a sweep file says it."""
    return json.dumps(value).strip('"')


def values(axis: str) -> str:
    """What an axis takes, in words."""
    words = axis_choices(axis)
    if words:
        return ", ".join(words)
    parts: list[Any] = [AXIS_TYPES[axis]]
    while nested := [inner for part in parts for inner in get_args(part)]:
        bounds = [part for part in nested if isinstance(part, Between)]
        if bounds:
            low, high = bounds[0].low, bounds[0].high
            return f"{low:g}, …" if high is None else f"{low:g} to {high:g}"
        parts = nested
    return "a number"
