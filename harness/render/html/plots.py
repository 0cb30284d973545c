"""Drawings of trials: curves of the loss, the target metric and learning rates, and step times.

Plots with axes are SVG within the page. Their texts are text, drawn in the reader's fonts, not
outlines of letters: they can be searched and copied. Of step times there are a course over a trial,
with the steady state marked, and a distribution: a mean hides a warm-up that is too short, a
compilation in the middle, and stalls.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from harness.measure.summary import measured_window, unpack
from harness.preflight.rates import CellRates
from harness.records.record import Record, Summary
from harness.records.series import Numbers
from harness.render import chart
from harness.render.format import clock_movement_text, rate_spread, three_digits
from harness.render.html.report import Report, ReportCell
from harness.render.preflight import draw_rates

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COURSE_POINTS = 120  # at most, of a course
BINS = 24  # of a distribution
COURSE_TOP = 3.0  # medians at the top of a course; steps that compile or stall are cut off there
PEAK_HEIGHT = 96  # percent of the box that the highest bin of a distribution takes
FEWEST_STEPS = 2  # that a trial must have measured to be drawn
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
    cells: list[ReportCell] = field(default_factory=list)

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


def loss_plot(title: str, cells: Sequence[ReportCell]) -> Plot | None:
    """Return a plot of the mean loss over ranks and trials at each step.

    None where no trial of the workload is done, or none reported losses of two steps.
    """
    return _plot(title, cells, "training loss", _losses)


def metric_plot(title: str, cells: Sequence[ReportCell]) -> Plot | None:
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
    if record.loss is None or record.rank0 is None:
        return {}
    losses = record.loss.unpack()
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
    cells: Sequence[ReportCell],
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
    cells: Sequence[ReportCell], read: Callable[[Record], dict[int, float]]
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


@dataclass(frozen=True, kw_only=True)
class StepTimeDrawing:
    """The step times of a cell, drawn in boxes of 100 by 100 in which y points down, as in SVG."""

    label: str  # the cell's name
    course: str  # points of a line
    steady: Sequence[tuple[float, float]]  # the beginning and width of each steady segment
    distribution: str  # points of an outline
    range: tuple[str, str]  # milliseconds at both ends of the distribution
    text: str


@dataclass(frozen=True)
class StepTrace:
    """The steps of one trial."""

    seconds: Numbers  # of the slowest rank at each step, shape (steps,)
    is_measured: NDArray[np.bool_]  # whether a step is in the measured window, shape (steps,)


def step_times(cell: ReportCell) -> StepTimeDrawing | None:
    """Return the step times of a cell, None if too few steps were measured.

    The course is of the first trial, the distribution of all done trials. A step takes as long as
    at the slowest rank, because the others wait for it.
    """
    traces = []
    for record in cell.done:
        if not record.ranks[0].step_seconds:
            continue
        seconds = np.stack([unpack(rank.step_seconds) for rank in record.ranks]).max(axis=0)
        # The steps after a resumption count as warm-up again.
        is_measured = measured_window(record.ranks, record.trial.cell.warmup).mask
        if is_measured.sum() >= FEWEST_STEPS:
            traces.append(StepTrace(seconds=seconds, is_measured=is_measured))
    if not traces:
        return None
    measured = np.concatenate([trace.seconds[trace.is_measured] for trace in traces]) * 1e3
    p50, p90, p99 = np.percentile(measured, (50, 90, 99))
    low, high = np.percentile(measured, (0.5, 99.5))
    percentiles = f"p50 {three_digits(p50)}, p90 {three_digits(p90)}, p99 {three_digits(p99)} ms"
    start = cell.summaries[0].window_start
    return StepTimeDrawing(
        label=cell.name,
        course=_course(traces[0].seconds * 1e3 / p50),
        steady=_segments(traces[0].is_measured),
        distribution=_outline(measured, low, high),
        range=(three_digits(low), f"{three_digits(high)} ms"),
        text=f"{percentiles}; {_steadiness(cell.summaries)} from step {start}{_clock(cell.done)}",
    )


def _steadiness(summaries: Sequence[Summary]) -> str:
    """Return what the measured steps are: `steady`, unless a trial has none or too few to tell."""
    settled = [summary.settled for summary in summaries]
    if False in settled:
        return "never steady, measured"
    if None in settled:
        return "measured"
    return "steady"


def _clock(records: Sequence[Record]) -> str:
    """Return how the clock of a GPU moved, of the first trial for which it did."""
    for text in filter(None, map(clock_movement_text, records)):
        return f"; the GPU's clock moved {text}"
    return ""


def _course(relative: Numbers) -> str:
    """Return the points of a line through step times relative to their median.

    Each point is the largest of its bin, so that a single straggling step is visible.
    """
    bins = np.array_split(relative, min(COURSE_POINTS, len(relative)))
    heights = np.minimum([steps.max() for steps in bins], COURSE_TOP) / COURSE_TOP * 100
    positions = (np.arange(len(bins)) + 0.5) / len(bins) * 100
    return _points(zip(positions, 100 - heights, strict=True))


def _segments(inside: NDArray[np.bool_]) -> list[tuple[float, float]]:
    """Return the beginning and the width of each run of True, in percent of the length.

    There are several where a trial was interrupted and resumed.
    """
    padded = np.concatenate([[False], inside, [False]]).astype(int)
    edges = np.flatnonzero(np.diff(padded)).reshape(-1, 2)
    steps = len(inside)
    return [(100 * start / steps, 100 * (end - start) / steps) for start, end in edges]


def _outline(values: Numbers, low: float, high: float) -> str:
    """Return the points of a histogram's outline between two values, in milliseconds.

    The outline begins and ends on the base line, so that it can be filled.
    """
    if high <= low:
        high = low + 1e-9  # NumPy refuses an empty range
    counts, _ = np.histogram(values, bins=BINS, range=(low, high))
    tops = 100 - counts / max(1, counts.max()) * PEAK_HEIGHT
    points: list[tuple[float, float]] = [(0, 100)]
    for number, top in enumerate(tops):
        points.append((100 * number / BINS, top))
        points.append((100 * (number + 1) / BINS, top))
    points.append((100, 100))
    return _points(points)


def _points(points: Iterable[tuple[float, float]]) -> str:
    """Return points as SVG writes them: `0.4,66.7 1.2,65.9`."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def rate_plots(report: Report) -> list[Plot]:
    """Return the loss over the learning rate for each cell that was searched."""
    if report.rates is None:
        return []
    plots = []
    for rates in report.rates.cells:
        if any(cell.cell.id == rates.cell.id for cell in report.cells):
            plots.append(_rate_plot(rates))
    return plots


def _rate_plot(rates: CellRates) -> Plot:
    """Return the plot of a cell, with its suggestions as the legend."""
    suggestions = {
        "suggested": rates.peak,
        "steepest": rates.steepest,
        "tenth of the lowest": rates.tenth,
    }
    legend = []
    for number, (name, spread) in enumerate(suggestions.items()):
        color = chart.COLORS[number + 1]
        legend.append(LegendEntry(color=color, dashes="none", name=f"{name} {rate_spread(spread)}"))
    label = rates.cell.label
    drawing = svg(draw_rates(rates, 3.6, 2.7), f"learning rates of {label}")
    note = f"now {rates.curves[0].current:.2g}"
    return Plot(title=label, svg=drawing, lines=legend, note=note)
