"""Examines one workload: runs all checks, in their order. To add a check, add a row to a table.

This is the task `check` of `harness.training.worker`, of one rank. It reads FOLDER/trial.json and
writes FOLDER/checks.json in addition to its result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from harness.core.import_path import ROOT
from harness.core.paths import TrialFolder
from harness.preflight import data_checks, learning_checks, model_checks
from harness.preflight.advice import advise, describe
from harness.preflight.data_checks import OpenedFiles, check_reads
from harness.preflight.learning_checks import Rehearsal, parameter_norms
from harness.preflight.probe import Probe
from harness.preflight.report import (
    CHECKS_FILE,
    CheckFinding,
    ParameterNorms,
    WorkloadReport,
    problem,
    write_checks,
)
from harness.records.record import RankResult
from harness.spec.axes import Axes
from harness.training.entry import joined, load_workload
from harness.training.ranks import Ranks, seed_everything
from harness.training.state import TrainingState
from workloads.base import Workload
from workloads.catalog import find_source
from workloads.datasets import load_splits

Check = Callable[[Probe], CheckFinding]

# Without a batch or a loss, the later checks cannot run.
REQUIRED: dict[str, Check] = {
    "indices": data_checks.check_indices,
    "finite samples": data_checks.check_finite_samples,
    "loss": model_checks.check_forward,
}
FURTHER: dict[str, Check] = {
    "labels": data_checks.check_labels,
    "repeatable": data_checks.check_repeatable,
    "split": data_checks.check_split,
    "layers": model_checks.check_registered,
    "device": model_checks.check_devices,
    "layout": model_checks.check_layout,
    "independence": model_checks.check_independence,
    "evaluation": model_checks.check_evaluation,
    "metrics": model_checks.check_metrics,
    "training mode": model_checks.check_mode,
    "logits": learning_checks.check_softmax,
    "start": learning_checks.check_start,
    "mean loss": learning_checks.check_mean,
    "gradients": learning_checks.check_gradients,
    "optimizer": learning_checks.check_optimizer,
}
# These check a model that overfits one batch.
REHEARSED: dict[str, Callable[[Probe, Rehearsal], CheckFinding]] = {
    "one batch": learning_checks.check_one_batch,
    "reach": learning_checks.check_reach,
    "direction": learning_checks.check_direction,
}


def examine_workload(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Write the findings of all checks; return a result without measurements."""
    with joined(folder, ranks) as (assignment, mesh):
        cell = assignment.trial.cell
        base_folder = Path(assignment.base_folder)
        code = find_source(cell.workload.uses, base_folder).files.values()
        opened = OpenedFiles(path for path in code if not path.is_relative_to(ROOT / "workloads"))
        workload = load_workload(assignment)
        report = examine(
            cell.workload.label, workload, cell.axes, assignment.trial.seed, mesh.device
        )
    reads = replace(check_reads(cell, workload, opened.paths), check="reads")
    report = replace(report, findings=[*report.findings, reads])
    write_checks(folder.path / CHECKS_FILE, report)
    return entered


def examine(
    label: str, workload: Workload, axes: Axes, seed: int, device: torch.device
) -> WorkloadReport:
    """Run all checks on a workload.

    An exception in one check is reported as a problem of the workload, and the other checks still run.
    Only a problem with the loss ends the examination.
    """
    started = time.monotonic()
    seed_everything(seed)
    splits = load_splits(workload)
    probe = Probe(workload=workload, splits=splits, axes=axes, device=device, seed=seed)
    findings: list[CheckFinding] = []
    for name, check in REQUIRED.items():
        finding = _run(name, partial(check, probe))
        # Unreadable samples fail all of these in the same way, which is reported once.
        if all(finding.measured != earlier.measured for earlier in findings):
            findings.append(finding)
    norms: list[ParameterNorms] = []
    if findings[-1].status == "passed":
        findings += [_run(name, partial(check, probe)) for name, check in FURTHER.items()]
        findings += _rehearse(probe)
        with suppress(Exception):  # of the user's code; `check_gradients` has reported it
            norms = parameter_norms(probe)
    return WorkloadReport(
        label=label,
        seed=seed,
        device=str(device),
        seconds=time.monotonic() - started,
        findings=findings,
        norms=norms,
    )


def _run(name: str, check: Callable[[], CheckFinding]) -> CheckFinding:
    """Run one check."""
    try:
        return replace(check(), check=name)
    except Exception as error:  # of the user's code, which is examined
        return replace(problem(describe(error), advise(error)), check=name)


def _rehearse(probe: Probe) -> list[CheckFinding]:
    """Let a model overfit one batch, and run the checks of it."""
    try:
        rehearsal = Rehearsal(probe=probe)
    except Exception as error:
        return [replace(problem(describe(error), advise(error)), check="one batch")]
    return [_run(name, partial(check, probe, rehearsal)) for name, check in REHEARSED.items()]
