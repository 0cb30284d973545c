"""Examines one workload: runs all checks, in their order. To add a check, add a row to the table.

This is the task `check` of `harness.training.worker`, of one rank. It reads FOLDER/trial.json
and writes FOLDER/checks.json in addition to its result.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

import harness
from harness.core.errors import one_line
from harness.core.paths import TrialFolder
from harness.preflight import checks
from harness.preflight.probe import Probe
from harness.preflight.report import (
    CHECKS_FILE,
    CheckFinding,
    WorkloadReport,
    problem,
    write_checks,
)
from harness.records.record import RankResult
from harness.sweep.axes import Axes
from harness.training.entry import joined
from harness.training.ranks import Ranks, seed_everything
from harness.training.state import TrainingState
from workloads.base import Workload, load_splits

# The folders whose lines say little about a workload.
FOREIGN = (Path(harness.__file__).parent, Path(torch.__file__).parent)

CHECKS: dict[str, Callable[[Probe], CheckFinding]] = {
    "indices": checks.check_indices,
    "loss": checks.check_loss,
    "repeatable": checks.check_repeatable,
    "workers": checks.check_workers,
    "mean loss": checks.check_mean,
    "evaluation": checks.check_evaluation,
    "training mode": checks.check_mode,
    "optimizer": checks.check_optimizer,
    "one batch": checks.check_one_batch,
}


def examine_workload(
    folder: TrialFolder,
    ranks: Ranks,
    entered: RankResult,
    state: TrainingState,
) -> RankResult:
    """Write the findings of all checks; return a result without measurements."""
    with joined(folder, ranks) as (assignment, workload, mesh):
        cell = assignment.trial.cell
        report = examine(
            cell.workload.label,
            workload,
            cell.axes,
            assignment.trial.seed,
            mesh.device,
        )
    write_checks(folder.path / CHECKS_FILE, report)
    return entered


def examine(
    label: str,
    workload: Workload,
    axes: Axes,
    seed: int,
    device: torch.device,
) -> WorkloadReport:
    """Run all checks on a workload.

    An exception in one check is reported as a problem of the workload, and the other checks still run,
    unless there is no batch or no loss to run them with.
    """
    started = time.monotonic()
    seed_everything(seed)
    probe = Probe(
        workload=workload,
        splits=load_splits(workload),
        axes=axes,
        device=device,
        seed=seed,
    )
    findings: list[CheckFinding] = []
    for name, check in CHECKS.items():
        has_raised = False
        try:
            finding = check(probe)
        except Exception as error:  # of the user's code, which is examined
            finding = problem(describe(error))
            has_raised = True
        findings.append(replace(finding, check=name))
        is_unreadable = name == "indices" and has_raised
        has_no_loss = name == "loss" and finding.status == "problem"
        if is_unreadable or has_no_loss:
            break
    return WorkloadReport(
        label=label,
        seed=seed,
        device=str(device),
        seconds=time.monotonic() - started,
        findings=findings,
    )


def describe(error: Exception) -> str:
    """Return an error's type and message in one line, and the line of the workload that caused it."""
    message = one_line(f"{type(error).__name__}: {error}")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if not any(map(path.is_relative_to, FOREIGN)):
            return f"{message} ({path.name}:{frame.lineno}, in {frame.name})"
    return message
