"""The page of `harness trend`: what is new, the table of changes, and a plot for each series."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from harness.analysis.trend import Trend, TrendPoint, TrendSeries
from harness.render import chart
from harness.render import trend as texts
from harness.render.html.plots import LegendEntry, Plot, svg
from harness.render.html.template import fill
from harness.statistics.interval import exp

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SECONDS_A_DAY = 86_400
WIDTH, HEIGHT = 5.2, 2.7  # inches of a plot
SLOWER, FASTER = chart.COLORS[1], chart.COLORS[0]
POINT, MEAN = chart.COLORS[5], chart.INK
ABOUT_PLOTS = (
    "a dot for each night, and the mean between changes. A band shows where a change may have begun, orange"
    " for slower and blue for faster, and its line where most likely."
)


def render_trend(trend: Trend) -> str:
    """Return the page."""
    points = [point for series in trend.series for point in series.points]
    first = min(points, key=lambda point: point.started)
    last = max(points, key=lambda point: point.started)
    overview = [
        ("nights", f"{trend.nights}, from {texts.day(first)} to {texts.day(last)}"),
        ("series", str(len(trend.series))),
        ("control", trend.control or "none"),
    ]
    return fill(
        "trend.html",
        name=trend.name,
        headline=texts.headline(trend),
        overview=overview,
        new=texts.lines(trend),
        caption=texts.caption(trend),
        table=texts.trend_table(trend),
        notes=[*texts.version_lines(trend), *trend.notes],
        about_plots=ABOUT_PLOTS,
        plots=[_plot(trend, series) for series in trend.series],
    )


def _plot(trend: Trend, series: TrendSeries) -> Plot:
    """Return the plot of a series, with a legend of its changes."""
    figure = chart.new_figure(WIDTH, HEIGHT)
    axes = figure.add_subplot()
    is_ratio = bool(trend.control) and not series.is_control
    y_label = (
        f"throughput over {trend.control}" if is_ratio else series.points[0].result.throughput_unit
    )
    chart.style_axes(axes, "", "", y_label)
    _draw(axes, series)
    legend = [LegendEntry(color=POINT, dashes="none", name="a night")]
    for change in series.changes:
        color = SLOWER if change.is_slower else FASTER
        text = f"{change.ratio - 1:+.1%} ({texts.interval(change)}) {texts.commits(change)}: {texts.sort(change)}"
        legend.append(LegendEntry(color=color, dashes="none", name=text))
    label = texts.label(series)
    drawing = svg(figure, f"nights of {label} on {series.hardware}")
    return Plot(title=label, svg=drawing, lines=legend, note=series.hardware)


def _draw(axes: Axes, series: TrendSeries) -> None:
    """Draw the nights, the mean between changes, and where each change may have begun."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    days = [_days(point) for point in series.points]
    logs = np.array([point.value for point in series.points])
    axes.plot(days, np.exp(logs), "o", markersize=3.5, color=POINT)
    starts = [0, *(change.change.start for change in series.changes), len(days)]
    for start, end in pairwise(starts):
        mean = exp(float(logs[start:end].mean()))
        axes.plot([days[start], days[end - 1]], [mean, mean], color=MEAN, linewidth=1.4)
    for change in series.changes:
        color = SLOWER if change.is_slower else FASTER
        axes.axvspan(
            _days(change.before), _days(change.after), color=color, alpha=0.15, linewidth=0
        )
        axes.axvline(_days(change.first), color=color, linewidth=1.2)
    locator = AutoDateLocator(maxticks=7)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def _days(point: TrendPoint) -> float:
    """Return when a point was measured, in days since the epoch, as Matplotlib counts dates."""
    return point.started / SECONDS_A_DAY
