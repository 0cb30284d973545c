"""Shows `harness export`: what was exported, how it compares with eager mode, and how fast it is."""

from __future__ import annotations

from rich.markup import escape

from harness.render.serving import (
    LATENCY_COLUMNS,
    MODEL_COLUMNS,
    latency_row,
    model_row,
    notes,
)
from harness.render.terminal.console import TerminalConsole
from harness.render.terminal.table import make_table, show
from harness.serving.record import TrialExport
from harness.serving.summary import summarize_groups


def show_export(export: TrialExport, folder: str) -> None:
    """Print the models in a trial's folder and their latencies."""
    console = TerminalConsole()
    recorded = export.recorded_metrics.get(export.target)
    line = f"[bold]{escape(export.trial)}[/] step {export.step}"
    if recorded is not None:
        line += f", recorded {escape(export.target)} {recorded:.4f}"
    console.print(line, soft_wrap=True)
    models = make_table(MODEL_COLUMNS, MODEL_COLUMNS[1:])
    for model in export.models:
        models.add_row(*model_row(export, model))
    show(console, models)
    if export.latency:
        console.print()
        latencies = make_table(
            LATENCY_COLUMNS, [name for name in LATENCY_COLUMNS if name != "run by"]
        )
        for latency in summarize_groups(export.latency):
            latencies.add_row(*latency_row(latency))
        show(console, latencies)
    for note in notes(export):
        console.print(escape(note), soft_wrap=True)
    console.print(escape(f"files: {folder}"), soft_wrap=True)
