"""The roofline of a sweep: its cells under the measured roofs of the machine that they ran on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import atan2, degrees
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from harness.analysis.cells import group_by_cell
from harness.core.paths import Results
from harness.hardware import machine as machines
from harness.hardware.machine import Machine
from harness.hardware.roofline import RooflinePoint, machine_of, roofline_point, with_mfu
from harness.hardware.vendor_peaks import DTYPE_OF_PRECISION
from harness.records.record import Record
from harness.render import chart
from harness.render.format import counted, rate
from harness.render.terminal.peak import title
from harness.spec.cell import Cell
from harness.spec.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED = 14  # cells that the legend names one by one; of more, only their workloads


@dataclass(frozen=True, kw_only=True)
class RooflineCell:
    """A cell under its roofs: the mean over its trials."""

    cell: Cell
    standing: RooflinePoint


def with_measured_peaks(
    records: Sequence[Record], results: Results
) -> tuple[list[Record], dict[str, Machine]]:
    """The records with MFU against peaks that were measured after they were written, and the machines measured.

    Raises BadInput for a record of peaks that can't be read.
    """
    known = machines.read_all(results.peaks)
    return [with_mfu(record, known) for record in records], known


def roofline_lines(
    sweep: Sweep, records: Sequence[Record], results: Results, known: Mapping[str, Machine]
) -> list[str]:
    """Draws the plot if the machine was measured; says where it is and how close to the roof each workload came."""
    done = [record for record in records if record.status == "done"]
    found = [machine for record in done if (machine := machine_of(record, known))]
    if not found:
        return (
            ["[dim]harness peak measures this machine: MFU and a roofline for these cells[/]"]
            if done
            else []
        )
    machine = max(found, key=found.count)
    cells = roofline_cells(
        sweep, [record for record in done if machine_of(record, known) is machine], machine
    )
    if not cells:
        return []
    path = results.sweep_folder(sweep.name).roofline_path
    chart.save_png(draw_roofline(sweep.name, cells, machine), path)
    without = len({record.trial.cell.id for record in done}) - len(cells)
    rest = (
        f" [dim](not placed: {without} cells, whose traffic or roof is not known)[/]"
        if without
        else ""
    )
    return [f"roofline: {describe_shares(cells)}; {escape(str(path))}{rest}"]


def roofline_cells(sweep: Sweep, records: Sequence[Record], machine: Machine) -> list[RooflineCell]:
    """The sweep's cells that have all it takes, in its order."""
    by_cell, cells = group_by_cell(records), []
    for cell in sweep.cells:
        standings = [
            standing
            for record in by_cell.get(cell.id, [])
            if (standing := roofline_point(record, machine))
        ]
        if standings:
            mean = fmean(standing.flops_per_s for standing in standings)
            cells.append(RooflineCell(cell=cell, standing=replace(standings[0], flops_per_s=mean)))
    return cells


def describe_shares(cells: Sequence[RooflineCell]) -> str:
    """As in `mlp 12–34% of the roof (memory)`, by workload."""
    parts = []
    for label in dict.fromkeys(one.cell.workload.label for one in cells):
        mine = [one.standing for one in cells if one.cell.workload.label == label]
        low, high = (
            f"{pick(standing.share for standing in mine) * 100:.3g}" for pick in (min, max)
        )
        bounds = " and ".join(sorted({standing.bound for standing in mine}))
        parts.append(
            f"{escape(label)} {low if low == high else f'{low}–{high}'}% of the roof ({bounds})"
        )
    return ", ".join(parts)


def draw_roofline(name: str, cells: Sequence[RooflineCell], machine: Machine) -> Any:
    """FLOP/s of one rank over intensity, with every roof that a cell is held against."""
    drawn = chart.new_figure(10.5, 5.6)
    axes: Axes = drawn.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    standings = [one.standing for one in cells]
    _draw_cells(axes, cells)
    ridges = [standing.peak / standing.bandwidth for standing in standings]
    intensities = [standing.intensity for standing in standings]
    axes.set_xlim(min(ridges + intensities) / 4, max(ridges + intensities) * 8)
    slowest = min(standing.flops_per_s for standing in standings)
    axes.set_ylim(
        slowest / 4, max(max(standing.peak, standing.flops_per_s) for standing in standings) * 2.2
    )
    chart.style_axes(
        axes,
        f"Roofline of {name}",
        "FLOP per byte, every operator's operands once",
        "FLOP/s of one rank",
    )
    axes.yaxis.set_major_formatter(chart.si_formatter())
    axes.xaxis.set_major_formatter(chart.plain_formatter())
    axes.minorticks_off()
    heading = f"{title(machine)}\nshare of the roof"
    axes.legend(fontsize=8.5, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0), title=heading,
                title_fontsize=8.5, alignment="left")  # fmt: skip
    drawn.draw_without_rendering()  # the slope of a roof on paper is known once the layout is
    _draw_roofs(axes, cells, machine)
    return drawn


def _draw_roofs(axes: Axes, cells: Sequence[RooflineCell], machine: Machine) -> None:
    """A level for each peak, a slope for each bandwidth, and a dotted one for what a cache gives."""
    standings = [one.standing for one in cells]
    right = axes.get_xlim()[1]
    peaks = {
        (DTYPE_OF_PRECISION[one.cell.axes.precision], _threads(one, machine)): one.standing.peak
        for one in cells
    }
    for (dtype, threads), peak in peaks.items():
        below = any(
            peak < other < 1.2 * peak for other in peaks.values()
        )  # there is no room above it
        start = peak / max(standing.bandwidth for standing in standings if standing.peak == peak)
        axes.plot([start, right], [peak, peak], color=chart.INK, linewidth=1.5)
        many = "" if threads is None else f", {counted(threads, 'thread')}"
        axes.annotate(f"{dtype}{many}: {rate(peak, 'FLOP')}", (right, peak), xytext=(-4, -5 if below else 4),
                      ha="right", va="top" if below else "bottom", textcoords="offset points", fontsize=8.5,
                      color=chart.INK)  # fmt: skip
    bandwidths = sorted({standing.bandwidth for standing in standings})
    for number, bandwidth in enumerate(bandwidths):
        top = max(standing.peak for standing in standings if standing.bandwidth == bandwidth)
        along = 0.2 + 0.3 * number / len(bandwidths)  # clear of each other and of where roofs meet
        _slope(axes, bandwidth, top, f"memory {rate(bandwidth, 'B')}", along, "-")
    cached = max(machine.cache_bandwidth(_threads(one, machine)) or 0.0 for one in cells)
    if cached > 1.2 * bandwidths[-1]:
        _slope(axes, cached, max(peaks.values()), f"cache {rate(cached, 'B')}", 0.5, ":")


def _slope(axes: Axes, bandwidth: float, top: float, text: str, along: float, style: str) -> None:
    """From the edge of the plot up to `top`, with a text `along` the way."""
    left = max(axes.get_xlim()[0], axes.get_ylim()[0] / bandwidth)
    right = top / bandwidth
    if right <= left:
        return
    axes.plot(
        [left, right], [left * bandwidth, top], color=chart.INK, linewidth=1.5, linestyle=style
    )
    (x0, y0), (x1, y1) = axes.transData.transform([(left, left * bandwidth), (right, top)])
    at = left * (right / left) ** along
    axes.text(
        at, at * bandwidth, text, rotation=degrees(atan2(y1 - y0, x1 - x0)), rotation_mode="anchor", ha="center",
        va="center", fontsize=8, color=chart.INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
    )  # fmt: skip


def _draw_cells(axes: Axes, cells: Sequence[RooflineCell]) -> None:
    """Each workload has a colour, each of its cells a marker; a thin line leads up to the roof."""
    labels = list(dict.fromkeys(one.cell.workload.label for one in cells))
    seen: dict[str, int] = {}
    for one in cells:
        label, standing = one.cell.workload.label, one.standing
        number = seen.setdefault(label, 0)
        seen[label] += 1
        colour = chart.COLORS[labels.index(label) % len(chart.COLORS)]
        text = f"{one.cell.label}: {standing.share * 100:.3g}%" if len(cells) <= NAMED else label
        axes.plot([standing.intensity] * 2, [standing.flops_per_s, standing.roof], color=colour, linewidth=0.8,
                  alpha=0.5, linestyle=":")  # fmt: skip
        axes.plot(
            standing.intensity, standing.flops_per_s, linestyle="", color=colour, markersize=8,
            marker=chart.MARKERS[number % len(chart.MARKERS)], markeredgecolor="white", markeredgewidth=0.8,
            label=text if len(cells) <= NAMED or number == 0 else None,
        )  # fmt: skip


def _threads(one: RooflineCell, machine: Machine) -> int | None:
    return None if machine.device == "cuda" else one.cell.axes.num_threads
