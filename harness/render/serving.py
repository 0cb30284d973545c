"""What the exports of a trial show, as a table: for the terminal and the report."""

from __future__ import annotations

from rich.markup import escape

from harness.core.paths import TrialFolder
from harness.render import format as fmt
from harness.render.console import TerminalConsole, show_table
from harness.render.table import Table
from harness.serving.record import TrialExport

MODEL_COLUMNS = ("format", "size", "samples", "eager", "exported", "largest difference", "allowed")
LATENCY_COLUMNS = ("format", "batch", "threads", "p50 ms", "p95 ms", "calls")


def export_tables(export: TrialExport) -> list[Table]:
    """Return the table of a trial's exported models, and that of their latencies if there are any."""
    models = Table(MODEL_COLUMNS, MODEL_COLUMNS[1:])
    latencies = Table(LATENCY_COLUMNS, LATENCY_COLUMNS[1:])
    for model in export.models:
        parity = model.parity
        models.add_row(
            model.format,
            f"{fmt.three_digits(model.bytes / 2**20)} MiB",
            f"{parity.samples:,}",
            fmt.metric_value(parity.metrics.get(export.target)),
            fmt.metric_value(parity.exported_metrics.get(export.target)),
            f"{parity.largest_difference:.2g}",
            f"{parity.tolerance:.2g}",
        )
        for latency in model.latencies:
            latencies.add_row(
                model.format,
                str(latency.batch_size),
                str(model.threads),
                fmt.three_digits(latency.p50_ms),
                fmt.three_digits(latency.p95_ms),
                f"{latency.calls:,}",
            )
    return [models, latencies] if latencies.rows else [models]


def show_export(export: TrialExport, folder: TrialFolder) -> None:
    """Print the models in a trial's folder and their latencies."""
    console = TerminalConsole()
    console.print_markup(f"[bold]{escape(export.trial)}[/] step {export.step}")
    for table in export_tables(export):
        show_table(console, table)
    for model in export.models:
        path = folder.exported_model(model.format)
        console.print_text(f"{model.format}: {path}, inputs {', '.join(model.inputs)}")
