"""Shows `harness plan --memory`: the memory of each cell's ranks, and what fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.markup import escape

from harness.analysis.cells import varying_axes
from harness.core.text import counted
from harness.preflight.memory import FREE_AXES, CellMemory, Remedy, memory_key
from harness.render.console import TerminalConsole, show_table
from harness.render.format import MISSING, NUMERIC_AXES, axis_texts, byte_size
from harness.render.table import Styled, Table
from harness.spec.cell import axis_value

UNITS = ((2**30, "GiB"), (2**20, "MiB"))


def show_memory(name: str, cells: Sequence[CellMemory]) -> None:
    """Print a row for all cells of a sweep that need the same memory, and what fits and what does not."""
    console = TerminalConsole()
    unlike = _unlike(cells)
    largest = max((memory.forecast.bytes or 0 for memory, _ in unlike), default=0)
    factor, unit = next((pair for pair in UNITS if largest >= pair[0]), UNITS[-1])
    console.print_markup(f"[bold]{escape(name)}[/]  memory of a rank at its peak, in {unit}")
    show_table(console, memory_table(unlike, factor))
    for line in memory_lines(cells):
        console.print_text(line)


def memory_to_json(memory: CellMemory) -> dict[str, Any]:
    """Return the memory of a cell as JSON; sizes are in bytes."""
    content = asdict(memory)
    del content["cell"]
    return content


def _unlike(cells: Sequence[CellMemory]) -> list[tuple[CellMemory, int]]:
    """Return one of those cells that need the same memory, and how many they are."""
    alike: dict[str, list[CellMemory]] = {}
    for memory in cells:
        alike.setdefault(memory_key(memory.cell), []).append(memory)
    return [(group[0], len(group)) for group in alike.values()]


def memory_table(unlike: Sequence[tuple[CellMemory, int]], factor: int) -> Table:
    """Return a table with a row for each of some cells that stand for others; sizes are divided by `factor`."""
    cells = [memory.cell for memory, _ in unlike]
    axes = [axis for axis in varying_axes(cells) if axis not in FREE_AXES]
    parts: Sequence[str] = next(
        (list(each.forecast.parts) for each, _ in unlike if each.forecast.parts), []
    )
    has_limit = any(memory.limit is not None for memory, _ in unlike)
    limit_columns = ["fits", "largest batch"] if has_limit else []
    columns = ["workload", *axes, "cells", "peak", *parts, *limit_columns]
    table = Table(columns, [*NUMERIC_AXES, "cells", "peak", *parts, "largest batch"])
    for memory, count in unlike:
        sizes = [memory.forecast.bytes, *(memory.forecast.parts.get(part) for part in parts)]
        row: list[Any] = [*axis_texts(memory.cell, axes), str(count)]
        row += [MISSING if size is None else f"{size / factor:.1f}" for size in sizes]
        if has_limit:
            row += [_fits(memory), str(memory.forecast.largest_batch or MISSING)]
        table.add_row(memory.cell.workload.label, *row)
    return table


def _fits(memory: CellMemory) -> str | Styled:
    """Return whether a cell fits, in a word."""
    if memory.excess is None:
        return MISSING
    return Styled("no", "failed") if memory.excess else "yes"


def memory_lines(cells: Sequence[CellMemory]) -> Iterator[str]:
    """Yield a line for each cell without a forecast or that does not fit, and one on the forecasts' errors."""
    for memory, _ in _unlike(cells):
        label, forecast = memory.cell.label, memory.forecast
        if forecast.problem:
            yield f"{label}: no forecast: {forecast.problem}"
        elif memory.excess:
            assert memory.limit is not None, "or nothing would exceed it"
            yield (
                f"{label} does not fit in {byte_size(memory.limit)} by {byte_size(memory.excess)};"
                f" {_what_fits(forecast.remedies)}"
            )
    if any(memory.cell.axes.execution != "eager" for memory in cells):
        yield "compiled cells are forecast as eager ones"
    yield from _error_lines(cells)


def _what_fits(remedies: Sequence[Remedy]) -> str:
    """Return with which settings a cell fits: `fits with grad_accum_steps=2 (61 GiB)`."""
    if not remedies:
        return "neither activation_checkpointing nor grad_accum_steps makes it fit"
    settings = []
    for remedy in remedies:
        axes = " ".join(f"{axis}={axis_value(value)}" for axis, value in remedy.axes.items())
        settings.append(f"{axes} ({byte_size(remedy.bytes)})")
    return f"fits with {' or '.join(settings)}"


def _error_lines(cells: Sequence[CellMemory]) -> Iterator[str]:
    """Yield how far the forecasts are from what trials took, and those that are wrong."""
    errors = [error for memory in cells for error in memory.errors]
    if not errors:
        return
    worst = max(abs(error) for error in errors)
    yield f"forecasts are within ±{worst:.0%} of the peaks of {counted(len(errors), 'recorded trial')}"
    for memory in cells:
        if memory.is_wrong:
            error = max(memory.errors, key=abs)
            yield (
                f"wrong by {error:+.0%}: {memory.cell.label}, measured in"
                f" {counted(len(memory.errors), 'trial')}"
            )
