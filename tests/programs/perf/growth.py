"""Shows how costs grow: a table, and a plot of time and memory over size, both axes logarithmic."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.view.html.plots import COLORS
from tests.programs.perf.results import Conditions

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

WIDTH = 120  # columns of the text below the tables


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one command took."""

    seconds: float  # of wall time
    cpu_seconds: float
    mib: float  # the peak of the resident memory


@dataclass(frozen=True, kw_only=True)
class Point:
    """What something took at one size."""

    unit: str  # of the size, in the plural: trials, cells, ranks, steps
    name: str  # of what was measured, as in Markdown
    size: int
    cost: Cost

    @property
    def plain_name(self) -> str:
        """Return the name without Markdown."""
        return self.name.replace("`", "")


def tables(points: Sequence[Point], conditions: Conditions) -> str:
    """Return a table in Markdown for each unit, in wall seconds and MiB, and what they depend on."""
    parts = []
    for unit in _distinct(point.unit for point in points):
        parts.append(_table([point for point in points if point.unit == unit]))
    parts.append(textwrap.fill(str(conditions), WIDTH, break_on_hyphens=False))
    return "\n\n".join(parts) + "\n"


def _table(points: Sequence[Point]) -> str:
    """Return the table of one unit: a row for each name, a column for each size."""
    sizes = sorted({point.size for point in points})
    cost_of = {(point.name, point.size): point.cost for point in points}
    titles = [f"{size:,} {points[0].unit}" for size in sizes]
    lines = [_line(["", *titles]), _line(["---"] * (1 + len(sizes)))]
    for name in _distinct(point.name for point in points):
        cells = [name]
        for size in sizes:
            cost = cost_of.get((name, size))
            cells.append("–" if cost is None else f"{_seconds(cost.seconds)}, {cost.mib:.0f} MiB")
        lines.append(_line(cells))
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    """Return a line of a table in Markdown."""
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _seconds(seconds: float) -> str:
    """Return a time as in `130 ms` or `1.2 s`."""
    return f"{seconds * 1e3:.0f} ms" if seconds < 0.95 else f"{seconds:.1f} s"


def _distinct(texts: Iterable[str]) -> list[str]:
    """Return each text once, in order of appearance."""
    return list(dict.fromkeys(texts))


def draw(points: Sequence[Point], path: Path) -> None:
    """Draw a column for each unit, time above memory, into a PNG file.

    Its background is white, so that it can be read on a dark page too.
    """
    units = _distinct(point.unit for point in points)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.6 * len(units), 6.0), layout="constrained", facecolor="white")
    grid = figure.subplots(2, len(units), sharex="col", sharey="row", squeeze=False)
    names = _distinct(point.plain_name for point in points)
    for column, unit in enumerate(units):
        time_axes, memory_axes = grid[0, column], grid[1, column]
        for number, name in enumerate(names):
            curve = [point for point in points if (point.unit, point.plain_name) == (unit, name)]
            if not curve:
                continue
            curve.sort(key=lambda point: point.size)
            sizes = [point.size for point in curve]
            _draw_curve(time_axes, sizes, [point.cost.seconds for point in curve], number, name)
            _draw_curve(memory_axes, sizes, [point.cost.mib for point in curve], number, name)
        time_axes.set(title=f"by {unit}", ylabel="seconds" if column == 0 else "")
        memory_axes.set(xlabel=unit, ylabel="MiB" if column == 0 else "")
        _scale(time_axes)
        _scale(memory_axes)
    handles: dict[str, Artist] = {}
    for axes in grid[0]:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(str(label), handle)
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=4,
        fontsize=8.5,
        frameon=False,
    )
    figure.savefig(path, dpi=150)


def _draw_curve(
    axes: Axes, sizes: Sequence[int], values: Sequence[float], number: int, name: str
) -> None:
    """Draw what one thing took, in the color and with the marker of its number."""
    axes.plot(
        sizes,
        values,
        color=COLORS[number % len(COLORS)],
        marker="o",
        linewidth=1.3,
        markersize=4.5,
        label=name,
    )


def _scale(axes: Axes) -> None:
    """Make both axes logarithmic, with numbers for people: MiB differ by less than a power of ten."""
    from matplotlib.ticker import LogLocator

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.minorticks_off()
