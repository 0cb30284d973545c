"""The leader board as a picture: MLflow's own charts have no error bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.analysis.result import CellResult
from harness.render import chart
from harness.statistics.interval import Interval
from harness.tracking.verdicts import Verdicts, rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_CELLS = 40  # cells: the fastest of more
COLORS = {
    "better": chart.COLORS[0],
    "worse": chart.COLORS[1],
    "same": "#777777",
    "inconclusive": "#BBBBBB",
}


def draw_board(verdicts: Verdicts, label: str, path: Path) -> None:
    """Throughput of a workload's cells with 95% intervals, from the fastest down, coloured by verdict."""
    found = [
        (cell, one)
        for cell in verdicts.cells
        if cell.cell.workload.label == label and (one := rate(cell))
    ]
    found = sorted(found, key=lambda pair: pair[1].mean)[-MAX_CELLS:]
    chart.save_png(_draw(verdicts, found), path)


def _draw(verdicts: Verdicts, found: Sequence[tuple[CellResult, Interval]]) -> Figure:
    drawn = chart.new_figure(9.0, 1.1 + 0.26 * len(found))
    axes = drawn.subplots()
    for place, (cell, one) in enumerate(found):
        row = verdicts.speed(cell.cell.id)
        colour = COLORS[row.verdict.outcome] if row else chart.INK
        axes.errorbar(
            one.mean,
            place,
            xerr=one.half_width or 0.0,
            fmt="o",
            color=colour,
            capsize=3,
            markersize=5,
        )
        word = row.verdict.label if row else "reference"
        axes.annotate(
            word,
            (1.01, place),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8.5,
            color=chart.INK,
        )
    axes.set_yticks(range(len(found)), [cell.cell.label for cell, _ in found])
    axes.set_xlim(left=0)
    chart.style_axes(axes, "", "samples/s, means over trials with 95% intervals", "")
    return drawn
