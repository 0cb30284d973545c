"""Trials that run again: reproductions, where two of them diverge, and parity."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.analysis.parity import CellParity, SweepParity, with_seeds, write_parity
from harness.analysis.selection import find, recorded_results
from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.core.text import counted
from harness.interface.folders import run_folder
from harness.reproduce.parity import ParityPlan, measure_parity
from harness.reproduce.rerun import Original, originals
from harness.reproduce.tracing import LAST_STEP, TraceDiff, TracedTrial, Tracer, diff_traced
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from harness.spec.selected import find_cell
from harness.spec.sweep import Sweep


def diff_trials(
    a: TracedTrial,
    b: TracedTrial,
    profile: Profile,
    timeout: float,
    *,
    on_progress: Callable[[str], None],
    last_step: int = LAST_STEP,
) -> TraceDiff:
    """Run two trials up to `last_step`, and return where they diverge.

    A trial may take `timeout` seconds. Raises HarnessError if a rank fails; the log that it names stays.
    """
    with run_folder("diff") as scratch:
        tracer = Tracer(scratch.path, profile, timeout, on_progress)
        return diff_traced(tracer, a, b, last_step=last_step)


def sweep_parity(
    results: Results,
    sweep: Sweep,
    profile: Profile,
    plan: ParityPlan,
    *,
    seed: int,
    margin: float,
    on_progress: Callable[[str], None],
    on_cell: Callable[[CellParity], None],
) -> SweepParity:
    """Measure the parity of a sweep, and write it into the sweep's folder.

    The parity of a part of the sweep is not written, nor that of resumed trials. `on_cell` gets each
    cell as soon as it was compared. Raises BadInput for a record of the sweep that can't be read, and
    HarnessError if a reference fails; logs that errors name stay.
    """
    recorded = recorded_results(results, sweep.name)
    measured = _measure_parity(
        sweep,
        profile,
        plan,
        seed=seed,
        margin=margin,
        on_progress=on_progress,
        on_cell=on_cell,
    )
    parity = with_seeds(measured, recorded)
    if sweep.whole() is sweep:
        write_parity(results.sweep_folder(sweep.name), parity)
    return parity


def _measure_parity(
    sweep: Sweep,
    profile: Profile,
    plan: ParityPlan,
    *,
    seed: int,
    margin: float,
    on_progress: Callable[[str], None],
    on_cell: Callable[[CellParity], None],
) -> SweepParity:
    """Measure parity in a temporary folder, which stays if a failure names a log in it."""
    with run_folder("parity") as scratch:
        measured = measure_parity(
            sweep,
            plan,
            Tracer(scratch.path, profile, sweep.timeout, on_progress),
            seed=seed,
            margin=margin,
            on_cell=on_cell,
        )
        if any(cell.failure for cell in measured.cells):
            scratch.keep()
    return measured


def choose_trials(
    sweep: Sweep, a: str, b: str, seed: int | None
) -> tuple[TracedTrial, TracedTrial]:
    """Return a trial of each of two cells, the sweep's only ones or those that are named.

    Their seed is `seed`, or the sweep's first. Raises BadInput.
    """
    if a and b:
        first, second = find_cell(sweep, a, "CELL"), find_cell(sweep, b, "CELL")
    elif a:
        raise BadInput(f"CELL: found only {a!r}; allowed: two cells")
    elif len(sweep.cells) == 2:
        first, second = sweep.cells
    else:
        raise BadInput(
            f"{sweep.source}: found {counted(len(sweep.cells), 'cell')}; allowed: two, or the names of two"
            " (harness plan lists them)"
        )
    seed_of_both = sweep.seeds[0] if seed is None else seed
    folder = sweep.base_folder
    return (
        TracedTrial(trial=Trial(cell=first, seed=seed_of_both), base_folder=folder),
        TracedTrial(trial=Trial(cell=second, seed=seed_of_both), base_folder=folder),
    )


def select_originals(
    results: Results, run: str, tracking_uri: str | None, only: Sequence[str]
) -> list[Original]:
    """Return the trials on record that a name stands for; raises BadInput for none."""
    from harness.tracking import Tracker

    named = find(results, run, lambda run_id: Tracker(results, tracking_uri).recall(run_id))
    return originals(named.records, named.folder, only)
