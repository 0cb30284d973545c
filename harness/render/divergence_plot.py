"""Plots how two trials part: the distances of their losses and parameters over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import TYPE_CHECKING

from harness.render.chart import (
    COLORS,
    INK,
    MARKERS,
    new_figure,
    plain_formatter,
    style_axes,
)
from harness.reproduce.trajectory import Course, Distance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 8.0, 6.0  # inches
MAX_TITLE = 80  # characters that fit
# Below it the axis is linear, so that the same bits, a distance of 0, can be drawn.
SMALLEST_RELATIVE = 1e-9
SMALLEST_ULP = 1


def draw_divergence(course: Course, title: str, first_step: int | None) -> Figure:
    """Return the figure: relative distances above, units in the last place below."""
    figure = new_figure(WIDTH, HEIGHT)
    upper, lower = figure.subplots(2, 1, sharex=True)
    style_axes(upper, shorten(title, MAX_TITLE, placeholder=" …"), "", "relative distance")
    style_axes(lower, "", "step", "distance in ULP")
    upper.set_yscale("symlog", linthresh=SMALLEST_RELATIVE)
    lower.set_yscale("symlog", linthresh=SMALLEST_ULP)
    for axes, name in ((upper, "relative"), (lower, "ulp")):
        axes.yaxis.set_major_formatter(plain_formatter())
        _draw_distances(axes, course.losses, name, "loss", 0)
        _draw_distances(axes, course.parameters, name, "parameters", 1)
        axes.set_ylim(bottom=0)
        if first_step is not None:
            axes.axvline(first_step, color=INK, linestyle="--", linewidth=1)
    if first_step is not None:
        upper.annotate(
            f" step {first_step}",
            (first_step, 0.97),
            xycoords=("data", "axes fraction"),
            va="top",
            fontsize=8.5,
        )
    lower.legend(loc="upper left", fontsize=8.5, frameon=False)
    return figure


def _draw_distances(
    axes: Axes, distances: Sequence[Distance], name: str, label: str, number: int
) -> None:
    """Draw one row of distances: a line through every step, or markers at a few."""
    if not distances:
        return
    steps = [distance.step for distance in distances]
    values = [getattr(distance, name) for distance in distances]
    marker = MARKERS[number] if number else ""
    axes.plot(steps, values, color=COLORS[number], marker=marker, linewidth=1.2, label=label)
