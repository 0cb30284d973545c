"""Shows what machines and models are found to be: `doctor`, `peak`, `check`, `find-lr` and `export`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.core.paths import TrialFolder
from harness.core.text import counted
from harness.export.record import TrialExport
from harness.hardware.machine import Machine, Timing
from harness.preflight.rates import CellRates
from harness.preflight.report import WorkloadReport
from harness.slurm.doctor import Check
from harness.view.value import Styled, Value, byte_size, write
from harness.view.view import Table, View

MARKS = {
    "passed": Styled("✓", "better"),
    "problem": Styled("✗", "failed"),
    "skipped": Styled("–", "quiet"),
}


def doctor_view(cluster: str, checks: Sequence[Check]) -> View:
    """Return whether each check passed, its name, and its detail.

    The order is that of the examination: what failed first may be the reason for what follows.
    `cluster` is the name of the profile.
    """
    table = Table(["", "check", "found"])
    for check in checks:
        mark = MARKS["passed" if check.passed else "problem"]
        table.add_row(mark, check.name, check.detail)
    passed = all(check.passed for check in checks)  # one that was not made has not passed
    result = {"cluster": cluster, "passed": passed, "checks": checks}
    return View(result=result, tables=[table], exit_code=int(not passed))


def peaks_view(machine: Machine, path: Path) -> View:
    """Return what was measured: the rates of the best and of the worst repeat of each call.

    `path` is that of the record.
    """
    table = Table(
        ["measured", "best", "worst", ""],
        {"best": "number", "worst": "number"},
    )
    for timing in machine.timings:
        unit = "GFLOP/s" if timing.call == "matmul" else "GB/s"
        best = timing.work / 1e9 / min(timing.seconds)
        worst = timing.work / 1e9 / max(timing.seconds)
        table.add_row(_call_name(timing), best, worst, unit)
    title = f"{machine.key} · torch {machine.software.torch}"
    return View(
        result=machine,
        heading=[Styled(title, "strong")],
        tables=[table],
        lines=[f"record: {path}", "harness show compares cells with these peaks"],
    )


def _call_name(timing: Timing) -> str:
    """Return what was measured: `product 512 × 512 bf16`."""
    if timing.call == "matmul":
        return f"product {timing.size} × {timing.size} {timing.dtype}"
    if timing.call == "copy":
        return f"copy {byte_size(timing.size)}"
    return f"all-reduce {byte_size(timing.size)}, {timing.ranks} ranks, bus"


def checks_view(reports: Sequence[WorkloadReport]) -> View:
    """Return all checks of each workload with their advice, and how many mistakes there are."""
    tables = []
    problems = 0
    for report in reports:
        table = Table(["", report.label, "found"])
        for finding in report.findings:
            measured = finding.measured
            if finding.advice:
                measured += f"\n→ {finding.advice}"
            table.add_row(MARKS[finding.status], finding.check, measured)
        tables.append(table)
        problems += len(report.problems)
    total = Styled("No mistake found.", "better")
    if problems:
        total = Styled(f"{counted(problems, 'mistake')} found.", "failed")
    return View(
        result=reports,
        tables=tables,
        lines=[total],
        exit_code=int(problems > 0),
    )


def rates_view(cells: Sequence[CellRates]) -> View:
    """Return the suggestion for each cell, with its range over the seeds."""
    columns = ["cell", "now", "suggested", "over seeds"]
    table = Table(columns, {"now": "number", "suggested": "number"})
    for cell in cells:
        spread: Value = "the loss never fell"
        if cell.suggested is not None:
            low = cell.suggestions[0]
            high = cell.suggestions[-1]
            spread = f"{low:.2g} to {high:.2g}"
        current = cell.curves[0].current
        table.add_row(cell.label, current, cell.suggested, spread)
    return View(result=cells, tables=[table])


def export_view(export: TrialExport, folder: TrialFolder) -> View:
    """Return the models in a trial's folder, how far they are from eager mode, and their latencies."""
    table = Table(
        ["format", "size", "difference", "allowed", "batch", "p50 ms", "p95 ms"],
        {
            "size": "bytes",
            "difference": "number",
            "allowed": "number",
            "batch": "number",
            "p50 ms": "number",
            "p95 ms": "number",
        },
    )
    lines = []
    for model in export.models:
        parity = model.parity
        for latency in model.latencies:
            table.add_row(
                model.format,
                model.bytes,
                parity.largest_difference,
                parity.tolerance,
                latency.batch_size,
                latency.p50_ms,
                latency.p95_ms,
            )
        path = folder.exported_model(model.format)
        metric = parity.exported_metrics.get(export.target)
        lines.append(
            f"{model.format}: {path}, inputs {', '.join(model.inputs)}; {export.target}"
            f" {write(metric, 'metric')} over {parity.samples:,} samples"
        )
    return View(
        result=export,
        heading=[[Styled(export.trial, "strong"), f" step {export.step}"]],
        tables=[table],
        lines=lines,
    )
