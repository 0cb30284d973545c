"""Curves of the loss and of the target metric, as SVG within the page.

Their texts are text, drawn in the reader's fonts, not outlines of letters: they can be searched and
copied.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from harness.analysis.result import CellResult
from harness.records.record import Numbers, Record
from harness.render import chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LINES = 16  # of a workload that are drawn: those of the fastest cells
MAX_LINES_WITH_RANGE = 4  # with more lines, their ranges would hide each other
MAX_POINTS = 200  # of a curve
# Line styles, as Matplotlib and as SVG write them. A style is used for as many lines as there are
# colors, then the next one begins.
LINE_STYLES: Sequence[tuple[Any, str]] = (
    ("-", "none"),
    ((0, (4, 1.5)), "6 2"),
    ((0, (1, 1)), "2 2"),
)
SVG_SETTINGS: Mapping[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "text.parse_math": False,
}
# Ids that Matplotlib numbers, which are the same in every plot of the page. Nothing refers to them.
NUMBERED_ID = re.compile(r' id="[a-z_A-Z0-9]*_\d+"')


@dataclass(frozen=True, kw_only=True)
class PlottedCell:
    """A cell whose trials are drawn."""

    result: CellResult
    name: str  # distinguishes it from the other cells of its workload
    number: int  # counts the cells of its workload, from 0
    done: Sequence[Record]  # those of its trials that are done


@dataclass(frozen=True, kw_only=True)
class LegendEntry:
    """A line of a plot and its name."""

    color: str
    dashes: str  # as SVG's stroke-dasharray
    name: str


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A drawing with its title and legend."""

    title: str
    svg: Markup
    lines: Sequence[LegendEntry]
    note: str


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The curve of one cell, or of several whose values are the very same."""

    steps: Sequence[int]
    values: Numbers  # shape (trials, steps)
    cells: list[PlottedCell] = field(default_factory=list)

    @property
    def number(self) -> int:
        """The number of its earliest cell, which decides the order, the color and the style.

        A cell so has the same look in all plots of its workload.
        """
        return min(cell.number for cell in self.cells)

    @property
    def name(self) -> str:
        """The names of its cells, joined by equals signs."""
        cells = sorted(self.cells, key=lambda cell: cell.number)
        return " = ".join(cell.name for cell in cells)


def loss_plot(title: str, cells: Sequence[PlottedCell]) -> Plot | None:
    """Return a plot of the mean loss over ranks and trials at each step.

    None where no trial of the workload is done, or none reported losses of two steps.
    """
    return _plot(title, cells, "training loss", _losses)


def metric_plot(title: str, cells: Sequence[PlottedCell]) -> Plot | None:
    """Return a plot of the target metric at each evaluation.

    None where every trial was evaluated only once, which gives no curve.
    """
    y_label = "target metric"
    for cell in cells:
        if cell.result.target:
            y_label = cell.result.target.name
            break
    return _plot(title, cells, y_label, _metrics)


def _losses(record: Record) -> dict[int, float]:
    """Return the loss by step, thinned to at most MAX_POINTS of the steps that have one.

    Steps count from 1. A plot is some hundred pixels wide, so that more points would not show. The
    steps are spread over the trial's planned length, so that trials that stopped at different steps
    have those before in common.
    """
    losses = record.loss
    if losses is None or record.rank0 is None:
        return {}
    planned = record.trial.cell.length.in_steps(record.rank0.steps_per_epoch)
    indices = np.linspace(0, planned - 1, min(planned, MAX_POINTS)).round().astype(int)
    # A script may report no losses, or only those of some steps; the others are NaN.
    reported = np.flatnonzero(~np.isnan(losses))
    positions = np.searchsorted(reported, indices)  # of the first loss at each of them or after it
    shown = np.unique(reported[positions[positions < len(reported)]])
    return {int(index) + 1: float(losses[index]) for index in shown}


def _metrics(record: Record) -> dict[int, float]:
    """Return the target metric of each evaluation by step; nothing for a trial that failed."""
    if record.rank0 is None:
        return {}
    target = record.rank0.target.name
    return {evaluation.step: evaluation.metrics[target] for evaluation in record.rank0.evaluations}


def _plot(
    title: str,
    cells: Sequence[PlottedCell],
    y_label: str,
    read: Callable[[Record], dict[int, float]],
) -> Plot | None:
    """Return a plot of each cell's mean over trials, and their range where lines are few.

    `read` returns a trial's values by step. Only steps that all trials of a cell have are drawn. A
    workload with many cells shows the fastest, in the order of the sweep.
    """
    curves = _distinct_curves(cells, read)
    if not curves:
        return None
    figure = chart.new_figure(3.6, 2.7)
    axes = figure.subplots()
    lines = []
    for curve in sorted(curves[:MAX_LINES], key=lambda curve: curve.number):
        color = chart.COLORS[curve.number % len(chart.COLORS)]
        style_number = curve.number // len(chart.COLORS) % len(LINE_STYLES)
        line_style, dashes = LINE_STYLES[style_number]
        mean = curve.values.mean(axis=0)
        axes.plot(curve.steps, mean, color=color, linestyle=line_style, linewidth=1.1)
        if len(curve.values) > 1 and len(curves) <= MAX_LINES_WITH_RANGE:
            low = curve.values.min(axis=0)
            high = curve.values.max(axis=0)
            axes.fill_between(curve.steps, low, high, color=color, alpha=0.15, linewidth=0)
        lines.append(LegendEntry(color=color, dashes=dashes, name=curve.name))
    chart.style_axes(axes, "", "step", y_label)
    note = ""
    if len(curves) > MAX_LINES:
        note = f"the {MAX_LINES} fastest of {len(curves)}"
    return Plot(title=title, svg=svg(figure, f"{y_label} of {title}"), lines=lines, note=note)


def _distinct_curves(
    cells: Sequence[PlottedCell], read: Callable[[Record], dict[int, float]]
) -> list[Curve]:
    """Return the curves of the cells from the fastest down.

    Cells with the very same values share a curve, as strategies do that compute the same bits.
    Equal means equal bytes: a difference in the last bit gives two curves.
    """
    curves: dict[tuple[tuple[int, ...], bytes], Curve] = {}
    for cell in sorted(cells, key=lambda cell: cell.result.mean_throughput, reverse=True):
        trials = [read(record) for record in cell.done]
        if not trials:
            continue
        common_steps = set(trials[0]).intersection(*trials)
        if len(common_steps) < 2:
            continue
        steps = tuple(sorted(common_steps))
        rows = []
        for trial in trials:
            rows.append([trial[step] for step in steps])
        values: Numbers = np.array(rows)
        curve = curves.setdefault((steps, values.tobytes()), Curve(steps=steps, values=values))
        curve.cells.append(cell)
    return list(curves.values())


def svg(figure: Figure, label: str) -> Markup:
    """Return a figure as inline SVG; a screen reader reads its label.

    The same figure with the same label gives the same bytes: the label is the salt of the ids that
    Matplotlib makes up, and the date of drawing is left out.
    """
    import matplotlib as mpl

    content = io.StringIO()
    settings: Any = {**SVG_SETTINGS, "svg.hashsalt": label}
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context(settings), warnings.catch_warnings():
        # Matplotlib's own font may lack a letter that the reader's fonts have.
        warnings.simplefilter("ignore")
        figure.savefig(content, format="svg", metadata=no_metadata)
    drawing = NUMBERED_ID.sub("", content.getvalue().partition("<svg")[2])
    return Markup('<svg role="img" aria-label="{}"').format(label) + Markup(drawing)
