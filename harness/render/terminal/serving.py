"""Shows `harness export`: what was exported, how it compares with eager mode, and how fast it is."""

from __future__ import annotations

from rich.markup import escape

from harness.render.serving import export_tables, notes
from harness.render.terminal.console import TerminalConsole
from harness.render.terminal.table import show
from harness.serving.record import TrialExport


def show_export(export: TrialExport, folder: str) -> None:
    """Print the models in a trial's folder and their latencies."""
    console = TerminalConsole()
    recorded = export.recorded_metrics.get(export.target)
    line = f"[bold]{escape(export.trial)}[/] step {export.step}"
    if recorded is not None:
        line += f", recorded {escape(export.target)} {recorded:.4f}"
    console.print(line, soft_wrap=True)
    for number, table in enumerate(export_tables(export)):
        if number:
            console.print()
        show(console, table)
    for note in notes(export):
        console.print(escape(note), soft_wrap=True)
    console.print(escape(f"files: {folder}"), soft_wrap=True)
