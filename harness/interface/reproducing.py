"""Compares trials: where they diverge, and how alike the cells of a sweep compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.analysis.parity import CellParity, SweepParity, with_seeds, write_parity
from harness.analysis.selection import recorded_results
from harness.core.paths import Results, write_atomically
from harness.interface.folders import run_folder
from harness.render.chart import png_bytes
from harness.render.divergence_plot import draw_divergence
from harness.render.terminal.divergence import differing_settings
from harness.reproduce.parity import ParityPlan, measure_parity
from harness.reproduce.recorded import RecordedDiff, RecordedTrial, find_bounds
from harness.reproduce.tracing import LAST_STEP, TraceDiff, TracedTrial, Tracer, diff_traced
from harness.reproduce.trajectory import course_of_runs
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep


def diff_trials(
    a: TracedTrial,
    b: TracedTrial,
    profile: Profile,
    timeout: float,
    *,
    plot: Path | None,
    on_progress: Callable[[str], None],
    last_step: int = LAST_STEP,
) -> TraceDiff:
    """Run two trials up to `last_step`, and return where they diverge.

    A trial may take `timeout` seconds. With `plot`, the file gets a plot of their distances. Raises
    HarnessError if a rank fails; the log that it names stays.
    """
    with run_folder("diff") as scratch:
        tracer = Tracer(scratch.path, profile, timeout, on_progress)
        diff = diff_traced(tracer, a, b, last_step=last_step, snapshots=plot is not None)
        if plot is not None:
            _save_plot(a.trial, b.trial, diff, plot)
    return diff


def _save_plot(a: Trial, b: Trial, diff: TraceDiff, path: Path) -> None:
    """Write the plot of how far two trials are apart, which were traced with snapshots."""
    run_a, run_b = diff.overviews
    course = course_of_runs(
        run_a.folder, run_b.folder, (a.cell.axes.world_size, b.cell.axes.world_size)
    )
    divergence = diff.steps.divergence
    first_step = None if divergence is None else divergence.earliest.mark.step
    settings = ", ".join(differing_settings(a.cell, b.cell)) or a.cell.label
    figure = draw_divergence(course, f"Distance of two trials: {settings}", first_step)
    write_atomically(path, png_bytes(figure))


def diff_recorded(
    a: RecordedTrial,
    b: RecordedTrial,
    profile: Profile,
    *,
    plot: Path | None,
    on_progress: Callable[[str], None],
) -> RecordedDiff:
    """Return where two recorded trials diverge.

    They run again if their records do not name the step, up to the first step that is known to
    differ; for a plot, to their end. Raises BadFile for damaged fingerprints, and HarnessError if a
    rank fails.
    """
    bounds = find_bounds(a, b)
    is_too_coarse = bounds.first_differing is not None and not bounds.is_exact
    if plot is None and not is_too_coarse:
        return RecordedDiff(a=a, b=b, bounds=bounds, again=None)
    last_step = LAST_STEP
    if plot is None and bounds.first_differing is not None:
        last_step = bounds.first_differing
    again = diff_trials(
        a.to_trace(),
        b.to_trace(),
        profile,
        max(a.timeout, b.timeout),
        plot=plot,
        on_progress=on_progress,
        last_step=last_step,
    )
    return RecordedDiff(a=a, b=b, bounds=bounds, again=again)


def sweep_parity(
    results: Results,
    sweep: Sweep,
    profile: Profile,
    plan: ParityPlan,
    *,
    seed: int,
    max_ulp: int,
    margin: float,
    on_progress: Callable[[str], None],
    on_cell: Callable[[CellParity], None],
) -> SweepParity:
    """Measure the parity of a sweep, and write it into the sweep's folder.

    The parity of a part of the sweep is not written. `on_cell` gets each cell as soon as it was
    compared. Raises BadInput for a record of the sweep that can't be read, and HarnessError if a
    reference fails; logs that errors name stay.
    """
    recorded = recorded_results(results, sweep.name)
    with run_folder("parity") as scratch:
        measured = measure_parity(
            sweep,
            plan,
            Tracer(scratch.path, profile, sweep.timeout, on_progress),
            seed=seed,
            max_ulp=max_ulp,
            margin=margin,
            on_cell=on_cell,
        )
        if any(cell.failure for cell in measured.cells):
            scratch.keep()  # the failures name logs in it
    parity = with_seeds(measured, recorded)
    if sweep.whole() is sweep:
        write_parity(results.sweep_folder(sweep.name), parity)
    return parity
