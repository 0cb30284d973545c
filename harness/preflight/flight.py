"""Examines all workloads of a sweep, each in a separate process."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness.core.paths import TrialFolder
from harness.launch.unmeasured import run_unmeasured
from harness.preflight.report import CHECKS_FILE, Preflight, WorkloadReport, read_checks
from harness.records.assignment import Assignment, write_assignment
from harness.spec.axes import Axes
from harness.spec.cell import Cell, Trial
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep

TIMEOUT = 300.0  # seconds for one workload
# The axes that decide what one process computes on a small batch. All others keep their defaults:
# a mistake in a workload shows without several ranks, a compiler or rounding.
EXAMINED_AXES = ("batch_size", "optimizer", "optimizer_impl", "lr", "lr_scaling", "num_threads")


def examine_sweep(
    sweep: Sweep, seed: int, profile: Profile, folder: Path, on_progress: Callable[[str], None]
) -> Preflight:
    """Examine each workload of a sweep, with the settings of its first cell.

    `folder` is for files of the processes. `on_progress` is called with the label of each workload
    before it is examined. Raises HarnessError, which names the log in `folder`, if a process
    fails before the end of its checks.
    """
    cells: dict[str, Cell] = {}
    for cell in sweep.cells:
        cells.setdefault(cell.workload.label, cell)
    reports = []
    for label, cell in cells.items():
        on_progress(label)
        reports.append(_examine_cell(cell, seed, sweep.base_folder, profile, folder))
    return Preflight(sweep=sweep.name, at=time.time(), workloads=reports)


def _examine_cell(
    cell: Cell, seed: int, base_folder: Path, profile: Profile, folder: Path
) -> WorkloadReport:
    """Start the process that examines a cell's workload, and read its report."""
    examined = {name: getattr(cell.axes, name) for name in EXAMINED_AXES}
    cell = replace(cell, axes=Axes(**examined))
    trial_folder = TrialFolder(Path(tempfile.mkdtemp(dir=folder)))
    assignment = Assignment(
        trial=Trial(cell=cell, seed=seed), base_folder=str(base_folder), device=profile.device
    )
    write_assignment(trial_folder.assignment_path, assignment)
    run_unmeasured("check", trial_folder, cell, profile, TIMEOUT)
    return read_checks(trial_folder.path / CHECKS_FILE)
