"""The section that shows what `harness find-lr` has found."""

from __future__ import annotations

from harness.preflight.rates import CellRates
from harness.render import chart
from harness.render.format import rate_spread
from harness.render.html.plots import LegendEntry, Plot, svg
from harness.render.html.report import Report
from harness.render.rates import draw_rates


def rate_plots(report: Report) -> list[Plot]:
    """Return the loss over the learning rate for each cell that was searched."""
    if report.rates is None:
        return []
    plots = []
    for rates in report.rates.cells:
        if any(cell.cell.id == rates.cell.id for cell in report.cells):
            plots.append(_plot(rates))
    return plots


def _plot(rates: CellRates) -> Plot:
    """Return the plot of a cell, with its suggestions as the legend."""
    legend = []
    for number, (name, spread) in enumerate(
        (
            ("suggested", rates.peak),
            ("steepest", rates.steepest),
            ("tenth of the lowest", rates.tenth),
        )
    ):
        color = chart.COLORS[number + 1]
        legend.append(LegendEntry(color=color, dashes="none", name=f"{name} {rate_spread(spread)}"))
    label = rates.cell.label
    drawing = svg(draw_rates(rates, 3.6, 2.7), f"learning rates of {label}")
    note = f"now {rates.curves[0].current:.2g}"
    return Plot(title=label, svg=drawing, lines=legend, note=note)
