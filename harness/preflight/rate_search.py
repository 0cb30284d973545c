"""Searches a learning rate for each cell of a sweep."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.core.paths import TrialFolder
from harness.launch.unmeasured import run_unmeasured
from harness.preflight.rates import RATES_FILE, CellRates, RateCurve, RateSearch, read_curve
from harness.records.assignment import Assignment, write_assignment
from harness.spec.cell import Length, Trial
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep


def search_sweep(
    sweep: Sweep,
    seeds: Sequence[int],
    length: Length,
    profile: Profile,
    folder: Path,
    on_progress: Callable[[str], None],
) -> RateSearch:
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
            curves.append(_run(trial, sweep, profile, folder))
        cells.append(CellRates(cell=cell, curves=curves))
    return RateSearch(sweep=sweep.name, at=time.time(), cells=cells)


def _run(trial: Trial, sweep: Sweep, profile: Profile, folder: Path) -> RateCurve:
    """Start the ranks of one training, and read their curve."""
    trial_folder = TrialFolder(Path(tempfile.mkdtemp(dir=folder)))
    assignment = Assignment(trial=trial, base_folder=str(sweep.base_folder), device=profile.device)
    write_assignment(trial_folder.assignment_path, assignment)
    run_unmeasured("find-lr", trial_folder, trial.cell, profile, sweep.timeout)
    return read_curve(trial_folder.path / RATES_FILE)
