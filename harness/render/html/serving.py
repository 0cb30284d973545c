"""The section of the report that shows exported models and their latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.render.html.report import Report
from harness.render.serving import (
    LATENCY_COLUMNS,
    MODEL_COLUMNS,
    latency_row,
    model_row,
    notes,
)
from harness.serving.record import TrialExport
from harness.serving.summary import summarize_groups


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """A table of texts, whose first column heads its rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class TableGroup:
    """Tables below one title, with notes after them."""

    title: str
    tables: Sequence[TextTable]
    notes: Sequence[str]


def exports(report: Report) -> list[TableGroup]:
    """Return the models and the latencies of each trial that was exported."""
    return [_group(report, export) for export in report.exports]


def _group(report: Report, export: TrialExport) -> TableGroup:
    """Return the tables of one trial."""
    models = [model_row(export, model) for model in export.models]
    tables = [TextTable(columns=MODEL_COLUMNS, rows=models)]
    latencies = [latency_row(latency) for latency in summarize_groups(export.latency)]
    if latencies:
        tables.append(TextTable(columns=LATENCY_COLUMNS, rows=latencies))
    hardware = export.hardware.cpu
    if export.device == "cuda" and export.hardware.gpus:
        hardware = export.hardware.gpus[0].name
    return TableGroup(title=export.trial, tables=tables, notes=[*notes(export), f"on {hardware}"])
