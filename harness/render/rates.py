"""Draws the loss over the learning rate, for the report and for MLflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.preflight.rates import CellRates
from harness.render import chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_rates(rates: CellRates, width: float, height: float) -> Figure:
    """Return a figure with the smoothed losses of all seeds; width and height are in inches.

    Vertical lines mark the suggestions.
    """
    figure = chart.new_figure(width, height)
    axes = figure.subplots()
    for curve in rates.curves:
        axes.plot(curve.rates, curve.smoothed, color=chart.COLORS[0], linewidth=1.1)
    for number, spread in enumerate((rates.peak, rates.steepest, rates.tenth)):
        if spread is not None:
            color = chart.COLORS[number + 1]
            # The first is seen where the second, which may be the same, lies on it.
            axes.axvline(spread.mean, color=color, linewidth=1.1 if number else 3.0)
            axes.axvspan(spread.low, spread.high, color=color, alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(chart.power_formatter())
    chart.style_axes(axes, "", "learning rate", "training loss")
    return figure
