"""Curves of the loss and of the target metric, as SVG within the page.

Their texts are text, drawn in the reader's fonts, not outlines of letters: they can be searched and
copied. Matplotlib is imported when the first plot is drawn, as it takes longer than most commands. Its
`Figure` is used without pyplot, which keeps every figure in memory and wants a display.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from harness.records.record import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_RANGES = 4  # with more lines, their ranges would hide each other
MAX_POINTS = 200  # of a curve
# The palette of Okabe and Ito, distinguishable for the color-blind too (Color Universal Design,
# 2008). The last three are pale on white and so come last.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8C6D31", "#E69F00", "#56B4E9", "#B3A800")
INK = "#222222"
SVG_SETTINGS: Mapping[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "text.parse_math": False,  # a dollar sign in a user's name does not start a formula
}
Curve = dict[int, float]  # the values of a trial by step


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A drawing with its title and legend."""

    title: str
    svg: Markup
    lines: Sequence[tuple[str, str]]  # the color and the name
    note: str


def losses(record: Record) -> Curve:
    """Return the loss by step, thinned to at most MAX_POINTS of the steps that have one.

    A plot is some hundred pixels wide, so that more points would not show. The steps are spread over
    the trial's planned length, so that trials that stopped at different steps have those before in
    common. A script may report no losses, or only those of some steps; the others are NaN.
    """
    losses = record.loss
    if losses is None or record.rank0 is None:
        return {}
    length = record.trial.cell.length
    planned = length.in_steps(record.rank0.steps_per_epoch)
    every = max(1.0, planned / (MAX_POINTS - 1))  # the first step has a point too
    curve: Curve = {}
    next_step = 1.0
    for step, loss in enumerate(losses, start=1):
        if step >= next_step and not math.isnan(loss):
            curve[step] = float(loss)
            passed = math.floor(step / every)
            next_step = every * passed + every
    return curve


def metrics(record: Record) -> Curve:
    """Return the target metric of each evaluation by step; nothing for a trial that failed."""
    if record.rank0 is None:
        return {}
    target = record.rank0.target.name
    curve = {}
    for evaluation in record.rank0.evaluations:
        curve[evaluation.step] = evaluation.metrics[target]
    return curve


def plot(
    title: str,
    y_label: str,
    cells: Mapping[str, Sequence[Record]],
    read: Callable[[Record], Curve],
) -> Plot | None:
    """Return a plot of each cell's mean over trials, and their range where lines are few.

    `cells` are the done records by the name of the cell, the fastest first. `read` returns a trial's
    values by step. Only steps that all trials of a cell have are drawn. Cells with the very same values
    share a line, as strategies do that compute the same bits. None where no cell has two steps.
    """
    lines = _lines(cells, read)
    if not lines:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6, 2.7), layout="constrained", facecolor="white")
    axes = figure.subplots()
    axes.set_xlabel("step", fontsize=9, color=INK)
    axes.set_ylabel(y_label, fontsize=9, color=INK)
    axes.tick_params(labelsize=8.5, colors=INK, which="both")
    axes.grid(True, color="#DDDDDD", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    legend = []
    # Those of the fastest cells: more lines can't be told apart.
    for color, ((steps, *trials), names) in zip(COLORS, lines.items(), strict=False):
        columns = list(zip(*trials, strict=True))
        mean = [sum(column) / len(column) for column in columns]
        axes.plot(steps, mean, color=color, linewidth=1.1)
        if len(trials) > 1 and len(lines) <= MOST_RANGES:
            low = list(map(min, columns))
            high = list(map(max, columns))
            axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
        legend.append((color, " = ".join(names)))
    note = ""
    if len(lines) > len(COLORS):
        note = f"the {len(COLORS)} fastest of {len(lines)}"
    drawing = _svg(figure, f"{y_label} of {title}")
    return Plot(title=title, svg=drawing, lines=legend, note=note)


def _lines(
    cells: Mapping[str, Sequence[Record]],
    read: Callable[[Record], Curve],
) -> dict[tuple[tuple[float, ...], ...], list[str]]:
    """Return the lines to draw, each with the names of the cells that have its values.

    A line has the steps, then the values of each trial of a cell.
    """
    lines: dict[tuple[tuple[float, ...], ...], list[str]] = {}
    for name, records in cells.items():
        curves = list(map(read, records))
        common = sorted(set.intersection(*map(set, curves)))
        if len(common) > 1:
            values = [tuple(map(curve.__getitem__, common)) for curve in curves]
            names = lines.setdefault((tuple(common), *values), [])
            names.append(name)
    return lines


def _svg(figure: Figure, label: str) -> Markup:
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
    drawing = content.getvalue().partition("<svg")[2]
    start = Markup('<svg role="img" aria-label="{}"').format(label)
    return start + Markup(drawing)
