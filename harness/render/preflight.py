"""Shows `harness check` and `harness find-lr`: mistakes in workloads, and learning rates."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape

from harness.core.text import counted
from harness.preflight.rates import CellRates
from harness.preflight.report import WorkloadReport
from harness.render.console import TerminalConsole, print_json, show_table, styled
from harness.render.format import MISSING
from harness.render.table import Table

NAME_WIDTH = 16  # columns, more than any name of a check
MARKS = {
    "passed": styled("✓", "better"),
    "problem": styled("✗", "failed"),
    "skipped": styled("–", "quiet"),
}


def show_checks(reports: Sequence[WorkloadReport], *, as_json: bool) -> None:
    """Print all checks of each workload with their advice, and how many mistakes there are."""
    if as_json:
        print_json(reports)
        return
    console = TerminalConsole()
    for report in reports:
        console.print_markup(
            f"[bold]{escape(report.label)}[/]: seed {report.seed}, {report.device},"
            f" {report.seconds:.1f} s"
        )
        for finding in report.findings:
            text = escape(f"{finding.check:{NAME_WIDTH}}{finding.measured}")
            console.print_markup(f"  {MARKS[finding.status]} {text}")
            if finding.advice:
                console.print_text(f"{'':{NAME_WIDTH + 4}}→ {finding.advice}")
    problems = sum(len(report.problems) for report in reports)
    if problems:
        console.print(f"[red]{counted(problems, 'mistake')} found.[/]")
    else:
        console.print("[green]No mistake found.[/]")


def show_rates(cells: Sequence[CellRates], *, as_json: bool) -> None:
    """Print the suggestion for each cell, with its range over the seeds."""
    if as_json:
        print_json(cells)
        return
    table = Table(("cell", "now", "suggested", "over seeds"), ("now", "suggested"))
    for cell in cells:
        suggested, spread = MISSING, "the loss never fell"
        if cell.suggested is not None:
            suggested = f"{cell.suggested:.2g}"
            spread = f"{cell.suggestions[0]:.2g} to {cell.suggestions[-1]:.2g}"
        table.add_row(cell.label, f"{cell.curves[0].current:.2g}", suggested, spread)
    show_table(TerminalConsole(), table)
