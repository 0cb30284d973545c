"""Shows `harness check`: what a pre-flight has found, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.markup import escape

from harness.core.paths import Results
from harness.core.text import counted
from harness.preflight.flight import examine_sweep
from harness.preflight.report import (
    Finding,
    ParameterNorms,
    Preflight,
    WorkloadReport,
    write_preflight,
)
from harness.render.format import MISSING
from harness.render.terminal.console import TerminalConsole
from harness.render.terminal.scratch import scratch_run
from harness.render.terminal.table import PlainTable, make_table, show
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep

NAME_WIDTH = 16  # columns, more than any name of a check
MARKS = {
    "passed": ("✓", "green"),
    "problem": ("✗", "red"),
    "noted": ("!", "yellow"),
    "skipped": ("–", "dim"),
}


def run(
    results: Results, sweep: Sweep, profile: Profile, *, seed: int, verbose: bool, as_json: bool
) -> bool:
    """Examine the workloads of a sweep, keep and print the result; return whether all is well.

    The result of a part of the sweep is printed only: what is kept is of all workloads.

    Raises HarnessError if a process does not get to the end of its checks; the log that it names
    stays.
    """
    with scratch_run("check", "checking") as (folder, on_workload):
        preflight = examine_sweep(sweep, seed, profile, folder, on_workload)
    if sweep.whole() is sweep:
        write_preflight(results.preflight_path(sweep.name), preflight)
    if as_json:
        print(json.dumps(asdict(preflight), indent=1))
    else:
        _print(TerminalConsole(), preflight, verbose=verbose)
    return not preflight.problem_count


def _print(console: TerminalConsole, preflight: Preflight, *, verbose: bool) -> None:
    """Print a table for each workload, and what it comes to."""
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
        show(console, _norm_table(workload.norms))


def _print_finding(console: TerminalConsole, finding: Finding) -> None:
    """Print what a check has come to, and below it what to do about a problem."""
    mark, style = MARKS[finding.status]
    name = f"{finding.check:{NAME_WIDTH}}"
    console.print(f"  [{style}]{mark}[/] {escape(name)}{escape(finding.measured)}", soft_wrap=True)
    if finding.advice:
        console.print(f"{'':{NAME_WIDTH + 4}}→ {escape(finding.advice)}", soft_wrap=True)


def _norm_table(norms: Sequence[ParameterNorms]) -> PlainTable:
    """Return a table with the norms of parameters and gradients of a new model."""
    table = make_table(["parameter", "norm", "norm of gradient"], ["norm", "norm of gradient"])
    for parameter in norms:
        gradient = MISSING if parameter.gradient is None else f"{parameter.gradient:.3g}"
        table.add_row(parameter.name, f"{parameter.parameter:.3g}", gradient)
    return table
