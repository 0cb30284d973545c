"""Shows `harness peak` as a table."""

from __future__ import annotations

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
    for matmul in machine.matmuls:
        name = f"product {matmul.size} × {matmul.size} {matmul.dtype}"
        table.add_row(name, *_rates(matmul.work, matmul.timing, "FLOP/s"))
    copied = machine.copy
    table.add_row(f"copy {byte_size(copied.bytes)}", *_rates(copied.work, copied.timing, "B/s"))
    for reduced in machine.all_reduces:
        name = f"all-reduce {byte_size(reduced.bytes)}, {reduced.ranks} ranks, bus"
        table.add_row(name, *_rates(reduced.bus_work, reduced.timing, "B/s"))
    return table


def _rates(work: float, timing: Timing, unit: str) -> list[str]:
    """Return the rates of the best, the median and the worst repeat of a call: `1.2 TFLOP/s`."""
    seconds = (timing.best, timing.median, timing.worst)
    return [f"{si_prefixed(work / one)}{unit}" for one in seconds]
