"""Shows what machines and models are found to be: `doctor`, `peak`, `check`, `find-lr` and `export`."""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.paths import TrialFolder
from harness.core.text import counted
from harness.export.record import TrialExport
from harness.hardware.machine import Machine, Timing
from harness.preflight.rates import CellRates
from harness.preflight.report import WorkloadReport
from harness.slurm.doctor import Check
from harness.view.value import Kind, Styled, Value, byte_size
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
        table.add_row(MARKS["passed" if check.passed else "problem"], check.name, check.detail)
    passed = all(check.passed for check in checks)
    result = {"cluster": cluster, "passed": passed, "checks": checks}
    return View(result=result, tables=[table])


def peaks_view(machine: Machine) -> View:
    """Return what was measured: the rates of the best and of the worst repeat of each call."""
    table = Table(["measured", "best", "worst", ""], {"best": "number", "worst": "number"})
    for timing in machine.timings:
        unit = "GFLOP/s" if timing.call == "matmul" else "GB/s"
        rates = [timing.work / 1e9 / end(timing.seconds) for end in (min, max)]
        table.add_row(_call_name(timing), *rates, unit)
    title = f"{machine.key} · torch {machine.software.torch}"
    return View(result=machine, heading=[Styled(title, "strong")], tables=[table])


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
    for report in reports:
        table = Table(["", report.label, "found"])
        for finding in report.findings:
            advice = f"\n→ {finding.advice}" if finding.advice else ""
            table.add_row(MARKS[finding.status], finding.check, f"{finding.measured}{advice}")
        tables.append(table)
    problems = sum(len(report.problems) for report in reports)
    total = Styled("No mistake found.", "better")
    if problems:
        total = Styled(f"{counted(problems, 'mistake')} found.", "failed")
    return View(result=reports, tables=tables, lines=[total])


def rates_view(cells: Sequence[CellRates]) -> View:
    """Return the suggestion for each cell, with its range over the seeds."""
    columns = ["cell", "now", "suggested", "over seeds"]
    table = Table(columns, {"now": "number", "suggested": "number"})
    for cell in cells:
        spread: Value = "the loss never fell"
        if cell.suggested is not None:
            spread = f"{cell.suggestions[0]:.2g} to {cell.suggestions[-1]:.2g}"
        table.add_row(cell.label, cell.curves[0].current, cell.suggested, spread)
    return View(result=cells, tables=[table])


def export_view(export: TrialExport, folder: TrialFolder) -> View:
    """Return the models in a trial's folder and their latencies."""
    numbers: dict[str, Kind] = dict.fromkeys(["samples", "difference", "allowed"], "number")
    numbers |= {"size": "bytes", "eager": "metric", "exported": "metric"}
    columns = ["format", "size", "samples", "eager", "exported", "difference", "allowed"]
    models = Table(columns, numbers)
    columns = ["format", "batch", "threads", "p50 ms", "p95 ms", "calls"]
    latencies = Table(columns, dict.fromkeys(columns[1:], "number"))
    lines = []
    for model in export.models:
        parity = model.parity
        metrics = [of.get(export.target) for of in (parity.metrics, parity.exported_metrics)]
        bounds = [parity.largest_difference, parity.tolerance]
        models.add_row(model.format, model.bytes, parity.samples, *metrics, *bounds)
        for latency in model.latencies:
            times = [latency.p50_ms, latency.p95_ms]
            latencies.add_row(
                model.format, latency.batch_size, model.threads, *times, latency.calls
            )
        path = folder.exported_model(model.format)
        lines.append(f"{model.format}: {path}, inputs {', '.join(model.inputs)}")
    heading: list[str | Styled] = [Styled(export.trial, "strong"), f" step {export.step}"]
    return View(result=export, heading=[heading], tables=[models, latencies], lines=lines)
