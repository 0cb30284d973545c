"""Draws the roofline of a sweep: its cells under the measured roofs of the machine they ran on.

`harness.hardware.roofline` says what the figures mean. Everything here is of a single rank: its
FLOP/s, the peak and the bandwidth that it could have had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import atan2, degrees
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from harness.analysis.cells import group_by_cell
from harness.core.paths import Results
from harness.core.text import counted
from harness.hardware import machine as machines
from harness.hardware.machine import Machine
from harness.hardware.roofline import RooflinePoint, machine_of, roofline_point, with_mfu
from harness.hardware.vendor_peaks import DTYPE_OF_PRECISION
from harness.records.record import Record
from harness.render import chart
from harness.render.format import machine_title, rate
from harness.spec.cell import Cell
from harness.spec.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LEGEND_CELLS = 14  # of more cells, the legend has only the workloads
CLOSE = 1.2  # roofs within this factor of each other have no room for a text between them


@dataclass(frozen=True, kw_only=True)
class RooflineCell:
    """A cell under its roofs, at the mean FLOP/s of its trials."""

    cell: Cell
    point: RooflinePoint  # of the cell's first trial, but for its FLOP/s


@dataclass(frozen=True, kw_only=True)
class SweepRoofline:
    """The cells of a sweep under the roofs of the machine that most of its trials ran on."""

    machine: Machine
    cells: Sequence[RooflineCell]
    omitted: int  # further cells with done trials, whose traffic or roof is not known


def with_measured_peaks(
    records: Sequence[Record], results: Results
) -> tuple[list[Record], dict[str, Machine]]:
    """Return the records with their MFU of measured peaks, and the measured machines by key.

    Peaks that were measured after a record was written count, too. Raises BadInput for a record of
    peaks that cannot be read.
    """
    measured = machines.read_all(results.peaks)
    return [with_mfu(record, measured) for record in records], measured


def sweep_roofline(
    sweep: Sweep, records: Sequence[Record], measured: Mapping[str, Machine]
) -> SweepRoofline | None:
    """Return the roofline of a sweep, None if none of its machines was measured.

    `measured` are the measured machines by key. A plot has the roofs of one machine, so that trials of
    other machines are left out.
    """
    done_ids: set[str] = set()  # of cells
    records_by_key: dict[str, list[Record]] = {}
    for record in records:
        if record.status != "done":
            continue
        done_ids.add(record.trial.cell.id)
        machine = machine_of(record, measured)
        if machine is not None:
            records_by_key.setdefault(machine.key, []).append(record)
    if not records_by_key:
        return None
    key = max(records_by_key, key=lambda key: len(records_by_key[key]))
    machine = measured[key]
    cells = roofline_cells(sweep, records_by_key[key], machine)
    return SweepRoofline(machine=machine, cells=cells, omitted=len(done_ids) - len(cells))


def roofline_cells(sweep: Sweep, records: Sequence[Record], machine: Machine) -> list[RooflineCell]:
    """Return the cells of which all figures are known, in the order of the sweep.

    `records` are those of trials on `machine`. A cell is left out if its traffic was not counted,
    or if its roof was not measured, as for a number of threads that `harness peak` does not try.
    """
    records_by_cell = group_by_cell(records)
    cells: list[RooflineCell] = []
    for cell in sweep.cells:
        points: list[RooflinePoint] = []
        for record in records_by_cell.get(cell.id, []):
            point = roofline_point(record, machine)
            if point is not None:
                points.append(point)
        if points:
            # The intensity and the roofs of the first trial stand for all.
            mean = fmean(point.flops_per_s for point in points)
            cells.append(RooflineCell(cell=cell, point=replace(points[0], flops_per_s=mean)))
    return cells


def describe_shares(cells: Sequence[RooflineCell]) -> str:
    """Return the range of shares by workload: `mlp 12–34% of the roof (memory)`.

    In parentheses is what bounds the cells: `memory`, `compute`, or both if they differ.
    """
    points_by_label: dict[str, list[RooflinePoint]] = {}
    for cell in cells:
        points_by_label.setdefault(cell.cell.workload.label, []).append(cell.point)
    parts: list[str] = []
    for label, points in points_by_label.items():
        shares: list[float] = []  # percent
        bounds: set[str] = set()
        for point in points:
            shares.append(point.share * 100)
            bounds.add(point.bound)
        # Compared as they are printed: a range whose ends look alike is a single number.
        low, high = f"{min(shares):.3g}", f"{max(shares):.3g}"
        extent = low if low == high else f"{low}–{high}"
        parts.append(f"{label} {extent}% of the roof ({' and '.join(sorted(bounds))})")
    return ", ".join(parts)


def draw_roofline(name: str, cells: Sequence[RooflineCell], machine: Machine) -> Any:
    """Return a figure of the FLOP/s of one rank over intensity, under the roofs of the cells.

    `name` is the sweep's. Both axes are logarithmic, so that a bandwidth is a straight slope and a
    peak a level.
    """
    figure = chart.new_figure(10.5, 5.6)
    axes: Axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    _draw_cells(axes, cells)
    _set_limits(axes, [cell.point for cell in cells])
    chart.style_axes(
        axes,
        f"Roofline of {name}",
        "FLOP per byte, every operator's operands once",
        "FLOP/s of one rank",
    )
    axes.yaxis.set_major_formatter(chart.si_tick)
    axes.xaxis.set_major_formatter(chart.plain_tick)
    axes.minorticks_off()
    axes.legend(
        title=f"{machine_title(machine)}\nshare of the roof",
        title_fontsize=8.5,
        alignment="left",
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        fontsize=8.5,
        frameon=False,
    )
    # The texts along the roofs need their slope on paper, which is known once the layout is.
    figure.draw_without_rendering()
    _draw_peaks(axes, cells, machine)
    _draw_bandwidths(axes, cells, machine)
    return figure


def _set_limits(axes: Axes, points: Sequence[RooflinePoint]) -> None:
    """Make room for all points, for the peaks, and for the ridges where roofs meet.

    There is more room to the right, where the texts of the peaks are.
    """
    intensities: list[float] = []  # of points and of ridges
    heights: list[float] = []  # FLOP/s of points and of peaks
    for point in points:
        intensities += [point.intensity, point.peak / point.bandwidth]
        heights += [point.flops_per_s, point.peak]
    axes.set_xlim(min(intensities) / 4, max(intensities) * 8)
    slowest = min(point.flops_per_s for point in points)
    axes.set_ylim(slowest / 4, max(heights) * 2.2)


def _draw_peaks(axes: Axes, cells: Sequence[RooflineCell], machine: Machine) -> None:
    """Draw a level for the peak of each dtype and number of threads.

    It begins at the ridge with the fastest memory that a cell of this peak has: left of it no cell
    could reach the peak.
    """
    peaks: dict[tuple[str, int | None], float] = {}
    for cell in cells:
        dtype = DTYPE_OF_PRECISION[cell.cell.axes.precision]
        peaks[dtype, _threads(cell, machine)] = cell.point.peak
    right = axes.get_xlim()[1]
    for (dtype, threads), peak in peaks.items():
        fastest_memory = max(cell.point.bandwidth for cell in cells if cell.point.peak == peak)
        axes.plot([peak / fastest_memory, right], [peak, peak], color=chart.INK, linewidth=1.5)
        # The text is above the level, or below it where another level is just above.
        is_crowded = any(peak < other < CLOSE * peak for other in peaks.values())
        with_threads = "" if threads is None else f", {counted(threads, 'thread')}"
        axes.annotate(
            f"{dtype}{with_threads}: {rate(peak, 'FLOP')}",
            (right, peak),
            xytext=(-4, -5 if is_crowded else 4),
            textcoords="offset points",
            ha="right",
            va="top" if is_crowded else "bottom",
            fontsize=8.5,
            color=chart.INK,
        )


def _draw_bandwidths(axes: Axes, cells: Sequence[RooflineCell], machine: Machine) -> None:
    """Draw a slope for each memory bandwidth, and a dotted one for that of the caches.

    The dotted one explains points above their roof: traffic that a cache served was counted too.
    """
    tops: dict[float, float] = {}  # the highest peak of the cells with a memory bandwidth
    cache_bandwidth = 0.0  # of the cells with the fastest, bytes/s
    for cell in cells:
        bandwidth = cell.point.bandwidth
        tops[bandwidth] = max(tops.get(bandwidth, 0.0), cell.point.peak)
        of_cell = machine.cache_bandwidth(_threads(cell, machine)) or 0.0
        cache_bandwidth = max(cache_bandwidth, of_cell)
    for number, (bandwidth, top) in enumerate(sorted(tops.items())):
        # The texts are clear of each other, and of the ridge where a slope ends.
        along = 0.2 + 0.3 * number / len(tops)
        _draw_slope(axes, bandwidth, top, f"memory {rate(bandwidth, 'B')}", along, "-")
    if cache_bandwidth > CLOSE * max(tops):
        highest = max(tops.values())
        _draw_slope(axes, cache_bandwidth, highest, f"cache {rate(cache_bandwidth, 'B')}", 0.5, ":")


def _draw_slope(
    axes: Axes, bandwidth: float, top: float, text: str, along: float, style: str
) -> None:
    """Draw intensity times bandwidth from the edge of the plot up to `top`.

    `bandwidth` is in bytes/s, `top` in FLOP/s. The text is on the line, the fraction `along` of the
    way up; `style` is matplotlib's of the line. Nothing is drawn if the slope would begin beyond
    its end, outside of the plot.
    """
    left = max(axes.get_xlim()[0], axes.get_ylim()[0] / bandwidth)
    right = top / bandwidth
    if right <= left:
        return
    ends = [(left, left * bandwidth), (right, top)]
    axes.plot(*zip(*ends, strict=True), color=chart.INK, linewidth=1.5, linestyle=style)
    (x0, y0), (x1, y1) = axes.transData.transform(ends)  # on paper, for the angle of the text
    text_x = left * (right / left) ** along  # a fraction of the way on the log scale
    axes.text(
        text_x,
        text_x * bandwidth,
        text,
        rotation=degrees(atan2(y1 - y0, x1 - x0)),
        rotation_mode="anchor",
        ha="center",
        va="center",
        fontsize=8,
        color=chart.INK,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
    )


def _draw_cells(axes: Axes, cells: Sequence[RooflineCell]) -> None:
    """Draw each cell as a marker in its workload's color; a dotted line leads up to its roof.

    The shape of the marker tells the cells of a workload apart. The legend has every cell with its
    share of the roof, or of many cells only the first of each workload.
    """
    counts: dict[str, int] = {}  # cells drawn so far, by workload in the order of appearance
    names_cells = len(cells) <= MAX_LEGEND_CELLS
    for cell in cells:
        label, point = cell.cell.workload.label, cell.point
        number = counts.get(label, 0)
        counts[label] = number + 1
        workload_number = list(counts).index(label)
        color = chart.COLORS[workload_number % len(chart.COLORS)]
        legend: str | None = None
        if names_cells:
            legend = f"{cell.cell.label}: {point.share * 100:.3g}%"
        elif number == 0:
            legend = label
        axes.plot(
            [point.intensity, point.intensity],
            [point.flops_per_s, point.roof],
            color=color,
            linewidth=0.8,
            alpha=0.5,
            linestyle=":",
        )
        axes.plot(
            point.intensity,
            point.flops_per_s,
            linestyle="",
            color=color,
            marker=chart.MARKERS[number % len(chart.MARKERS)],
            markersize=8,
            markeredgecolor="white",
            markeredgewidth=0.8,
            label=legend,
        )


def _threads(cell: RooflineCell, machine: Machine) -> int | None:
    """Return the number of threads that the roofs of a cell were measured with, None on a GPU."""
    return None if machine.device == "cuda" else cell.cell.axes.num_threads


def roofline_lines(roofline: SweepRoofline | None, path: Path) -> list[str]:
    """Return lines of markup that say how close to the roof cells came, and where the plot is.

    There are none without a roofline, and where none of its cells has a place.
    """
    if roofline is None or not roofline.cells:
        return []
    line = f"roofline: {escape(describe_shares(roofline.cells))}; {escape(str(path))}"
    if roofline.omitted:
        cells = counted(roofline.omitted, "cell")
        line += f" [dim](not placed: {cells}, whose traffic or roof is not known)[/]"
    return [line]
