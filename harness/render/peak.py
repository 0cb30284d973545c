"""Shows `harness peak`: tables in the terminal, and one small plot.

Matplotlib takes long to import: `harness.render.chart` does it when the figure is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from harness.core.text import counted
from harness.hardware.machine import Copy, Machine, Matmul, TimedAllReduce
from harness.render import chart
from harness.render.console import TerminalConsole, show_table
from harness.render.format import MISSING, byte_size, machine_title, three_digits
from harness.render.table import Content, Styled, Table

if TYPE_CHECKING:
    pass

DIRECTIONS = {"memory": "memory copy", "to-device": "host to GPU", "from-device": "GPU to host"}
GIGA = 1e9
MICROSECONDS = 1e6  # in a second


def show_peaks(machine: Machine) -> None:
    """Print tables of what was measured."""
    console = TerminalConsole()
    console.print_markup(f"[bold]{escape(machine_title(machine))}[/]")
    for table in tables(machine):
        console.print()
        show_table(console, table)
    measurements: list[Matmul | Copy] = [*machine.matmuls, *machine.copies]
    counts = [len(measurement.timing.seconds) for measurement in measurements]
    repeats = str(max(counts))
    if min(counts) < max(counts):  # long calls have fewer
        repeats = f"{min(counts)}–{max(counts)}"
    console.print(f"\nthe best of {repeats} repeats (the median, the worst)", style="dim")


def tables(machine: Machine) -> list[Table]:
    """Return the tables of products, of copies and, with several ranks, of all-reduces."""
    products = _size_table(
        "product, GFLOP/s",
        _series_by_name(machine.matmuls),
        size_of=lambda matmul: matmul.size,
        size_label=lambda size: f"{size} × {size}",
    )
    copies = _size_table(
        "copy, GB/s",
        _series_by_name(machine.copies),
        size_of=lambda copy: copy.bytes,
        size_label=byte_size,
    )
    if not machine.all_reduces:
        return [products, copies]
    return [products, copies, _all_reduce_table(machine.all_reduces)]


def _size_table(
    row_title: str,
    series_by_name: Mapping[str, Sequence[Any]],
    *,
    size_of: Callable[[Any], int],
    size_label: Callable[[int], str],
) -> Table:
    """Return a table with a column for each series and a row for each size.

    A field has the rate of the best repeat, of the median and of the worst, in 1e9 per second.
    `size_of` returns the size of a measurement, `size_label` the title of a size's row. Series may
    have different sizes: a slow one ends earlier, and has a dash in the rows of larger sizes.
    """
    rates_by_size: dict[int, dict[str, Content]] = {}  # then by the name of the series
    for name, series in series_by_name.items():
        for measurement in series:
            work, timing = measurement.work, measurement.timing  # work of a call: FLOP or bytes
            best = work / timing.best / GIGA
            middle = work / timing.median / GIGA
            worst = work / timing.worst / GIGA
            rates = rates_by_size.setdefault(size_of(measurement), {})
            rates[name] = [
                Styled(three_digits(best), "plain"),
                Styled(f" ({three_digits(middle)}, {three_digits(worst)})", "quiet"),
            ]
    table = Table([row_title, *series_by_name], series_by_name)
    for size in sorted(rates_by_size):
        row: list[Content] = [size_label(size)]
        for name in series_by_name:
            row.append(rates_by_size[size].get(name, MISSING))
        table.add_row(*row)
    return table


def _all_reduce_table(all_reduces: Sequence[TimedAllReduce]) -> Table:
    """Return the table of all-reduces, a row for each size.

    Rates are those of the median, unlike the rates of products and copies.
    """
    numbers = ["median µs", "range µs", "algorithm GB/s", "bus GB/s"]
    table = Table([f"all-reduce, {all_reduces[0].ranks} ranks", *numbers], numbers)
    for measurement in all_reduces:
        timing = measurement.timing
        best, worst = timing.best * MICROSECONDS, timing.worst * MICROSECONDS
        table.add_row(
            byte_size(measurement.bytes),
            f"{timing.median * MICROSECONDS:,.1f}",
            f"{best:,.1f}–{worst:,.1f}",
            three_digits(measurement.work / timing.median / GIGA),
            three_digits(measurement.bus_work / timing.median / GIGA),
        )
    return table


def _series_by_name(measurements: Sequence[Matmul | Copy]) -> dict[str, list[Any]]:
    """Group measurements by dtype or direction, and number of threads: `fp32, 2 threads`."""
    groups: dict[str, list[Any]] = {}
    for measurement in measurements:
        if isinstance(measurement, Matmul):
            name = measurement.dtype
        else:
            name = DIRECTIONS[measurement.direction]
        if measurement.threads is not None:
            name += f", {counted(measurement.threads, 'thread')}"
        groups.setdefault(name, []).append(measurement)
    return groups


def draw(machine: Machine) -> Any:
    """Return a small figure of the best repeats of products by size, a line for each dtype and threads."""
    figure = chart.new_figure(5.0, 3.6)
    axes = figure.subplots()
    for number, (name, series) in enumerate(_series_by_name(machine.matmuls).items()):
        sizes = [matmul.size for matmul in series]
        rates = [matmul.work / matmul.timing.best for matmul in series]
        color = chart.COLORS[number % len(chart.COLORS)]
        axes.plot(sizes, rates, label=name, color=color, marker="o", markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    chart.style_axes(axes, machine_title(machine), "rows and columns of a product", "FLOP/s")
    axes.yaxis.set_major_formatter(chart.si_tick)
    axes.minorticks_off()
    axes.legend(fontsize=8, frameon=False)
    return figure
