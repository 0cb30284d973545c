"""Shows `harness peak` in the terminal: what is being measured, then tables and a plot.

Matplotlib takes long to import: `harness.render.chart` does it when the figure is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from harness.core.text import counted
from harness.hardware.machine import SATURATION, Copy, Machine, Matmul, TimedAllReduce
from harness.render import chart
from harness.render.console import TerminalConsole, show_table
from harness.render.format import MISSING, byte_size, machine_title, rate, three_digits
from harness.render.table import Content, Styled, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIRECTIONS = {"memory": "memory copy", "to-device": "host to GPU", "from-device": "GPU to host"}
GIGA = 1e9
MICROSECONDS = 1e6  # in a second
CACHE_COLOR = "#666666"  # of the text next to the line
CACHE_LINE_COLOR = "#888888"
MAX_LEVEL_TICKS = 4  # of more ticks, the labels are slanted
LEGEND_ROOM = 0.35  # of a panel's height on the log scale, added above the points
COLUMNS_PER_DOUBLING = 7  # of the plot in the terminal; its sizes are on a log scale
PLOT_ROWS = 11  # of it: one for each tenth of the peak
PLOT_MARKS = "●○▲△■□◆◇"  # of its series; of more, the last marks repeat


def show_peaks(machine: Machine, *, plot: bool) -> None:
    """Print tables of what was measured; with `plot`, also a plot of products."""
    console = TerminalConsole()
    console.print_markup(f"[bold]{escape(machine_title(machine))}[/]")
    for table in tables(machine):
        console.print()
        show_table(console, table)
    if plot:
        console.print()
        for line in plot_lines(machine):
            console.print_text(line)
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


def plot_lines(machine: Machine) -> list[str]:
    """Return a plot of products in text: by size, the share of the peak of each dtype and threads.

    A share makes dtypes of unlike speed comparable. The lines below have the peaks, and the size
    from which on each is reached.
    """
    series_by_name = _series_by_name(machine.matmuls)
    sizes = sorted({matmul.size for matmul in machine.matmuls})
    columns = {size: round(COLUMNS_PER_DOUBLING * math.log2(size / sizes[0])) for size in sizes}
    grid = [[" "] * (columns[sizes[-1]] + 1) for _ in range(PLOT_ROWS)]
    legend = []
    for number, (name, series) in enumerate(series_by_name.items()):
        mark = PLOT_MARKS[number % len(PLOT_MARKS)]
        peak = max(matmul.work / matmul.timing.best for matmul in series)
        for matmul in series:
            share = matmul.work / matmul.timing.best / peak
            row = PLOT_ROWS - 1 - round(share * (PLOT_ROWS - 1))
            grid[row][columns[matmul.size]] = mark
        reached = machine.saturating_size(series[0].dtype, series[0].threads)
        legend.append(
            f"{mark} {name}: {rate(peak, 'FLOP')}, {SATURATION:.0%} of it from {reached} × {reached}"
        )
    lines = ["share of the peak by rows and columns"]
    for number, cells in enumerate(grid):
        share = f"{1 - number / (PLOT_ROWS - 1):.0%}" if number % 5 == 0 else ""
        lines.append(f"{share:>5} │{''.join(cells)}".rstrip())
    ticks = ""  # sizes below their columns
    for size, column in columns.items():
        if _is_power_of_two(size):
            ticks = f"{ticks:<{column + 1}}{size}"
    return [*lines, f"{'':5} └{'─' * len(grid[0])}", f"{'':6}{ticks}", *legend]


def _is_power_of_two(size: int) -> bool:
    """Return whether a size is labeled; those between have no room for a label."""
    return size & (size - 1) == 0


def draw(machine: Machine) -> Any:
    """Return a figure with panels of products, copies and all-reduces, each by size.

    Points are the best repeats of products and copies; bars reach down to the worst.
    """
    panels = 3 if machine.all_reduces else 2
    figure = chart.new_figure(4.9 * panels, 4.6)
    figure.suptitle(machine_title(machine), x=0.01, ha="left", fontsize=12, color=chart.INK)
    axes = figure.subplots(1, panels)
    _draw_matmuls(axes[0], machine)
    _draw_copies(axes[1], machine.copies, machine.cache_bytes)
    if machine.all_reduces:
        _draw_all_reduces(axes[2], machine.all_reduces)
    return figure


def _draw_matmuls(axes: Axes, machine: Machine) -> None:
    """Draw the panel of products, with a star where each series reaches SATURATION of its peak."""
    matmuls = machine.matmuls
    series_by_name = _series_by_name(matmuls)
    _draw_series(axes, series_by_name, lambda matmul: matmul.size)
    for series in series_by_name.values():
        reached = machine.saturating_size(series[0].dtype, series[0].threads)
        (point,) = [matmul for matmul in series if matmul.size == reached]
        flops_per_s = point.work / point.timing.best
        axes.plot([point.size], [flops_per_s], "*", color=chart.INK, markersize=9, zorder=5)
    _finish_panel(
        axes,
        title="Matrix product",
        x_label=f"rows and columns (star: {SATURATION:.0%} of the peak)",
        y_label="FLOP/s",
        sizes=[matmul.size for matmul in matmuls if _is_power_of_two(matmul.size)],
        size_label=str,
    )


def _draw_copies(axes: Axes, copies: Sequence[Copy], cache_bytes: int | None) -> None:
    """Draw the panel of copies, with a line at the size of the last-level caches.

    Arrays left of the line fit in the caches: their rates are not those of memory.
    """
    _draw_series(axes, _series_by_name(copies), lambda copy: copy.bytes)
    _finish_panel(
        axes,
        title="Copy",
        x_label="bytes of the array",
        y_label="bytes/s",
        sizes=[copy.bytes for copy in copies],
        size_label=byte_size,
    )
    if not cache_bytes:
        return
    axes.axvline(cache_bytes, color=CACHE_LINE_COLOR, linewidth=1, linestyle=":")
    axes.text(
        cache_bytes,
        0.02,
        "last-level cache ",
        rotation=90,
        ha="right",
        va="bottom",
        fontsize=8,
        color=CACHE_COLOR,
        transform=axes.get_xaxis_transform(),
    )


def _draw_series(
    axes: Axes, series_by_name: Mapping[str, Sequence[Any]], size_of: Callable[[Any], int]
) -> None:
    """Draw series of rates over sizes, as points at the best repeats with bars down to the worst.

    Each dtype or direction has a color. A single CPU thread is dashed and hollow, so that it can be
    told from all threads in the same color.
    """
    families: list[str] = []  # dtypes or directions, in the order of their first series
    for name, series in series_by_name.items():
        family = name.partition(",")[0]
        if family not in families:
            families.append(family)
        number = families.index(family)
        color = chart.COLORS[number % len(chart.COLORS)]
        is_single_thread = series[0].threads == 1
        sizes: list[int] = []
        best: list[float] = []
        down: list[float] = []  # lengths of the bars
        for measurement in series:
            sizes.append(size_of(measurement))
            best.append(measurement.work / measurement.timing.best)
            down.append(best[-1] - measurement.work / measurement.timing.worst)
        up = [0.0] * len(best)
        axes.errorbar(
            sizes,
            best,
            yerr=[down, up],
            label=name,
            color=color,
            linestyle="--" if is_single_thread else "-",
            linewidth=1.6,
            marker=chart.MARKERS[number % len(chart.MARKERS)],
            markersize=5.5,
            markerfacecolor="white" if is_single_thread else color,
            elinewidth=0.9,
            capsize=2.5,
        )


def _draw_all_reduces(axes: Axes, all_reduces: Sequence[TimedAllReduce]) -> None:
    """Draw the panel of all-reduces, by their medians.

    The algorithm bandwidth is bytes over seconds; the bus bandwidth can be compared with that of a
    link, whatever the number of ranks. The text in the corner is the time of the smallest size.
    """
    ranks = all_reduces[0].ranks
    sizes: list[int] = []
    algorithm_rates: list[float] = []  # bytes/s
    bus_rates: list[float] = []
    for measurement in all_reduces:
        sizes.append(measurement.bytes)
        algorithm_rates.append(measurement.work / measurement.timing.median)
        bus_rates.append(measurement.bus_work / measurement.timing.median)
    rates_by_name = {"algorithm": algorithm_rates, "bus, 2(n−1)/n of it": bus_rates}
    if ranks == 2:  # both bandwidths are the same
        rates_by_name = {"algorithm and bus": algorithm_rates}
    for number, (name, rates) in enumerate(rates_by_name.items()):
        axes.plot(
            sizes,
            rates,
            label=name,
            color=chart.COLORS[number],
            linewidth=1.6,
            marker=chart.MARKERS[number],
            markersize=5.5,
        )
    _finish_panel(
        axes,
        title=f"All-reduce, {ranks} ranks",
        x_label="bytes at each rank",
        y_label="bytes/s",
        sizes=sizes,
        size_label=byte_size,
    )
    latency = all_reduces[0].timing.median * MICROSECONDS
    axes.text(
        0.97,
        0.04,
        f"{byte_size(sizes[0])} take {latency:,.0f} µs",
        ha="right",
        fontsize=9,
        transform=axes.transAxes,
        color=chart.INK,
    )


def _finish_panel(
    axes: Axes,
    *,
    title: str,
    x_label: str,
    y_label: str,
    sizes: Sequence[int],
    size_label: Callable[[int], str],
) -> None:
    """Set scales, titles and ticks, and place a legend clear of the lines.

    `sizes` are those that were measured, some maybe several times; `size_label` labels their ticks.
    """
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom / 1.5, top * (top / bottom) ** LEGEND_ROOM)
    chart.style_axes(axes, title, x_label, y_label)
    # Ticks at the sizes that were measured, rather than at the powers that matplotlib would choose.
    ticks = sorted(set(sizes))
    labels = [size_label(tick) for tick in ticks]
    if len(ticks) > MAX_LEVEL_TICKS:
        axes.set_xticks(ticks, labels, rotation=35, ha="right")
    else:
        axes.set_xticks(ticks, labels)
    axes.yaxis.set_major_formatter(chart.si_tick)
    axes.minorticks_off()
    axes.legend(fontsize=8.5, frameon=False, loc="upper left", ncols=2)
