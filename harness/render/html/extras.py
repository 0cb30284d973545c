"""The sections that other commands fill: parity, learning rates, exported models."""

from __future__ import annotations

from harness.preflight.rates import CellRates
from harness.render import chart, serving
from harness.render import parity as parity_texts
from harness.render.format import rate_spread
from harness.render.html.plots import LegendEntry, Plot, svg
from harness.render.html.report import Report
from harness.render.rates import draw_rates
from harness.render.table import TableGroup


def parity(report: Report) -> list[TableGroup]:
    """Return the cells that are compared with each reference, as `harness parity` measured them."""
    if report.parity is None:
        return []
    groups = []
    for reference in report.parity.references:
        groups.append(
            TableGroup(
                title=f"against {reference.cell.label}",
                about=parity_texts.reference_line(reference),
                tables=[parity_texts.parity_table(report.parity, reference)],
            )
        )
    return groups


def exports(report: Report) -> list[TableGroup]:
    """Return the models and the latencies of each trial that was exported."""
    groups = []
    for export in report.exports:
        hardware = export.hardware.cpu
        if export.device == "cuda" and export.hardware.gpus:
            hardware = export.hardware.gpus[0].name
        notes = [*serving.notes(export), f"on {hardware}"]
        tables = serving.export_tables(export)
        groups.append(TableGroup(title=export.trial, tables=tables, notes=notes))
    return groups


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
