"""Examines the workloads of a sweep, and searches learning rates, each in separate processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.core.progress import report_progress
from harness.core.scratch import run_folder
from harness.launch.tasks import run_task
from harness.preflight.rates import RATES_FILE, CellRates, read_curve
from harness.preflight.report import CHECKS_FILE, WorkloadReport, read_checks
from harness.sweep.axes import Axes
from harness.sweep.cell import Cell, Length, Trial
from harness.sweep.cluster import Profile
from harness.sweep.sweep import Sweep

LENGTH = Length(steps=200)  # of a training that searches a rate
TIMEOUT = 300.0  # seconds for one workload
# The axes that decide what one process computes on a small batch. All others keep their defaults:
# a mistake in a workload shows without several ranks, a compiler or rounding.
EXAMINED_AXES = ("batch_size", "optimizer_impl", "lr", "lr_scaling", "num_threads")


def examine_sweep(sweep: Sweep, profile: Profile) -> list[WorkloadReport]:
    """Examine each workload of a sweep, with the settings of its first cell and the first seed.

    Raises HarnessError if a process fails before the end of its checks; the log that it names stays.
    """
    cells: dict[str, Cell] = {}
    for cell in sweep.cells:
        cells.setdefault(cell.workload.label, cell)

    reports = []
    with run_folder("check") as folder:
        for label, cell in cells.items():
            report_progress(label)
            examined = {name: cell.axes.value(name) for name in EXAMINED_AXES}
            examined_cell = replace(cell, axes=Axes(**examined))
            trial = Trial(cell=examined_cell, seed=sweep.seeds[0])
            trial_folder = run_task("check", trial, sweep.base_folder, profile, TIMEOUT, folder)
            reports.append(read_checks(trial_folder.path / CHECKS_FILE))
    return reports


def search_sweep(sweep: Sweep, seeds: Sequence[int], profile: Profile) -> list[CellRates]:
    """Train each cell of a sweep at rising rates, once for each seed.

    Raises HarnessError if a rank fails; the log that it names stays.
    """
    cells = []
    with run_folder("find-lr") as folder:
        for cell in sweep.cells:
            # Searched at this length, neither evaluated nor stopped.
            searched = replace(cell, length=LENGTH, evaluate=LENGTH, stop=None)
            curves = []
            for seed in seeds:
                report_progress(f"{cell.label} seed {seed}")
                trial = Trial(cell=searched, seed=seed)
                trial_folder = run_task(
                    "find-lr", trial, sweep.base_folder, profile, sweep.timeout, folder
                )
                curves.append(read_curve(trial_folder.path / RATES_FILE))
            cells.append(CellRates(label=cell.label, curves=curves))
    return cells
