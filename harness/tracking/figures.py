"""The leader board as a picture, because MLflow's own charts have no error bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.analysis.result import CellResult
from harness.analysis.sweep_result import SweepResult
from harness.core.paths import safe_folder_name, write_atomically
from harness.render import chart
from harness.render.format import cell_names, common_unit, verdict_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BOARD_FOLDER = "figures"  # among the artifacts of a sweep's run
WIDTH = 9.0  # inches
DPI = 100  # descriptions show a picture as wide as it is, and have 960 pixels at a window of 1,280
MAX_CELLS = 40  # of the fastest cells that are drawn
OUTCOME_COLORS = {
    "better": chart.COLORS[0],
    "worse": chart.COLORS[1],
    "same": "#777777",
    "inconclusive": "#BBBBBB",
}


def board_path(workload: str) -> str:
    """Return where a workload's leader board is among the artifacts of its sweep's run."""
    return f"{BOARD_FOLDER}/{safe_folder_name(workload)}.png"


def draw_board(result: SweepResult, workload: str, path: Path) -> None:
    """Draw the throughput of a workload's cells with 95% intervals into a PNG file.

    The fastest cell is at the top, and its verdict to the right. The color is that of the verdict
    on throughput; the reference is black.
    """
    fastest = result.ranking(workload)[:MAX_CELLS]
    figure = _draw(result, list(reversed(fastest)))
    write_atomically(path, chart.png_bytes(figure, DPI))


def _draw(result: SweepResult, from_the_bottom: Sequence[CellResult]) -> Figure:
    """Return a figure whose height grows with the number of cells; the throughput begins at 0."""
    figure = chart.new_figure(WIDTH, 1.1 + 0.26 * len(from_the_bottom))
    axes = figure.subplots()
    heights_by_color: dict[str, list[int]] = {}
    for height, cell_result in enumerate(from_the_bottom):
        row = result.throughput_row(cell_result.cell)
        color = chart.INK if row is None else OUTCOME_COLORS[row.verdict.outcome]
        heights_by_color.setdefault(color, []).append(height)
        axes.annotate(  # to the right of the plot
            verdict_label(row),
            (1.01, height),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8.5,
            color=chart.INK,
        )
    for color, heights in heights_by_color.items():
        _draw_intervals(axes, from_the_bottom, heights, color)
    names = cell_names(result.all_cells)
    labels = [names[cell_result.cell.id] for cell_result in from_the_bottom]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlim(left=0)
    unit = common_unit(from_the_bottom)
    chart.style_axes(axes, "", f"{unit}, means over seeds with 95% intervals", "")
    return figure


def _draw_intervals(
    axes: Axes, cell_results: Sequence[CellResult], heights: Sequence[int], color: str
) -> None:
    """Draw the intervals of the cells at some heights, which are their numbers, in one color.

    All at once, because Matplotlib takes a hundred times longer for an error bar than for a point of
    one.
    """
    means = []
    below = []
    above = []
    for height in heights:
        throughput = cell_results[height].throughput
        assert throughput is not None  # a cell without one has no rank
        low, high = throughput.bounds or (throughput.mean, throughput.mean)
        means.append(throughput.mean)
        below.append(throughput.mean - low)
        above.append(high - throughput.mean)
    axes.errorbar(
        means, heights, xerr=[below, above], fmt="o", color=color, capsize=3, markersize=5
    )
