"""Examines the workloads of a sweep, and searches learning rates, each in separate processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.launch.unmeasured import run_unmeasured
from harness.preflight.rates import RATES_FILE, CellRates, read_curve
from harness.preflight.report import CHECKS_FILE, WorkloadReport, read_checks
from harness.spec.axes import Axes
from harness.spec.cell import Cell, Length, Trial
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep

TIMEOUT = 300.0  # seconds for one workload
# The axes that decide what one process computes on a small batch. All others keep their defaults:
# a mistake in a workload shows without several ranks, a compiler or rounding.
EXAMINED_AXES = ("batch_size", "optimizer_impl", "lr", "lr_scaling", "num_threads")


def examine_sweep(
    sweep: Sweep,
    seed: int,
    profile: Profile,
    folder: Path,
    on_progress: Callable[[str], None],
) -> list[WorkloadReport]:
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
        examined = {name: cell.axes.value(name) for name in EXAMINED_AXES}
        trial = Trial(cell=replace(cell, axes=Axes(**examined)), seed=seed)
        trial_folder = run_unmeasured("check", trial, sweep.base_folder, profile, TIMEOUT, folder)
        reports.append(read_checks(trial_folder.path / CHECKS_FILE))
    return reports


def search_sweep(
    sweep: Sweep,
    seeds: Sequence[int],
    length: Length,
    profile: Profile,
    folder: Path,
    on_progress: Callable[[str], None],
) -> list[CellRates]:
    """Train each cell of a sweep at rising rates, once for each seed.

    `length` is that of one such training, `folder` holds files of the ranks. `on_progress` is called
    before each. Raises HarnessError if a rank fails, and names its log in `folder`.
    """
    cells = []
    for cell in sweep.cells:
        # Searched at this length, neither evaluated nor stopped.
        searched = replace(cell, length=length, evaluate=length, stop=None)
        curves = []
        for seed in seeds:
            on_progress(f"{cell.label} seed {seed}")
            trial = Trial(cell=searched, seed=seed)
            trial_folder = run_unmeasured(
                "find-lr", trial, sweep.base_folder, profile, sweep.timeout, folder
            )
            curves.append(read_curve(trial_folder.path / RATES_FILE))
        cells.append(CellRates(label=cell.label, curves=curves))
    return cells
