"""Shows `harness check`: what a pre-flight has found, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.markup import escape

from harness.core.text import counted
from harness.preflight.report import (
    CheckFinding,
    ParameterNorms,
    Preflight,
    WorkloadReport,
)
from harness.render.format import MISSING
from harness.render.table import Table
from harness.render.terminal.console import TerminalConsole, styled
from harness.render.terminal.table import show

NAME_WIDTH = 16  # columns, more than any name of a check
MARKS = {
    "passed": styled("✓", "better"),
    "problem": styled("✗", "failed"),
    "noted": styled("!", "open"),
    "skipped": styled("–", "quiet"),
}


def show_preflight(preflight: Preflight, *, verbose: bool, as_json: bool) -> None:
    """Print the findings on each workload, and how many mistakes there are."""
    if as_json:
        print(json.dumps(asdict(preflight), indent=1))
        return
    console = TerminalConsole()
    for workload in preflight.workloads:
        _print_workload(console, workload, verbose=verbose)
    problems = preflight.problem_count
    if problems:
        console.print(f"[red]{counted(problems, 'mistake')} found.[/]")
    else:
        console.print("[green]No mistake found.[/]")


def _print_workload(console: TerminalConsole, workload: WorkloadReport, *, verbose: bool) -> None:
    """Print the problems and notes of a workload with their advice; with `verbose`, all of its checks."""
    passed_count = sum(finding.status == "passed" for finding in workload.findings)
    console.print(
        f"[bold]{escape(workload.label)}[/]: {passed_count} of {len(workload.findings)} checks passed,"
        f" seed {workload.seed}, {workload.device}, {workload.seconds:.1f} s",
        soft_wrap=True,
    )
    for finding in workload.findings:
        if verbose or finding.status in ("problem", "noted"):
            _print_finding(console, finding)
    if verbose and workload.norms:
        show(console, norm_table(workload.norms))


def _print_finding(console: TerminalConsole, finding: CheckFinding) -> None:
    """Print what a check has come to, and below it what to do about a problem."""
    name = f"{finding.check:{NAME_WIDTH}}"
    text = escape(f"{name}{finding.measured}")
    console.print(f"  {MARKS[finding.status]} {text}", soft_wrap=True)
    if finding.advice:
        console.print(f"{'':{NAME_WIDTH + 4}}→ {escape(finding.advice)}", soft_wrap=True)


def norm_table(norms: Sequence[ParameterNorms]) -> Table:
    """Return a table with the norms of parameters and gradients of a new model."""
    table = Table(["parameter", "norm", "norm of gradient"], ["norm", "norm of gradient"])
    for parameter in norms:
        gradient = MISSING if parameter.gradient is None else f"{parameter.gradient:.3g}"
        table.add_row(parameter.name, f"{parameter.parameter:.3g}", gradient)
    return table
