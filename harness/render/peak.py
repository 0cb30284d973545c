"""Shows `harness peak` as a table."""

from __future__ import annotations

from statistics import median

from rich.markup import escape

from harness.hardware.machine import Machine, Timing
from harness.render.console import TerminalConsole, show_table
from harness.render.format import byte_size, machine_title, si_prefixed
from harness.render.table import Table


def show_peaks(machine: Machine) -> None:
    """Print what was measured: rates by the best repeat, the median and the worst."""
    console = TerminalConsole()
    console.print_markup(f"[bold]{escape(machine_title(machine))}[/]")
    show_table(console, peaks_table(machine))


def peaks_table(machine: Machine) -> Table:
    """Return a table with a row for each call."""
    table = Table(["measured", "best", "median", "worst"], ["best", "median", "worst"])
    for timing in machine.timings:
        seconds = (min(timing.seconds), median(timing.seconds), max(timing.seconds))
        unit = "FLOP/s" if timing.call == "matmul" else "B/s"
        rates = [f"{si_prefixed(timing.work / one)}{unit}" for one in seconds]
        table.add_row(_name(timing), *rates)
    return table


def _name(timing: Timing) -> str:
    """Return what was measured: `product 512 × 512 bf16`."""
    if timing.call == "matmul":
        return f"product {timing.size} × {timing.size} {timing.dtype}"
    if timing.call == "copy":
        return f"copy {byte_size(timing.size)}"
    return f"all-reduce {byte_size(timing.size)}, {timing.ranks} ranks, bus"
