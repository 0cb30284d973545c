"""What can be known of a sweep's workloads before they are trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.core.paths import Results
from harness.interface.folders import run_folder
from harness.preflight.rates import RateSearch, write_search
from harness.preflight.report import Preflight, write_preflight
from harness.preflight.runs import examine_sweep, search_sweep
from harness.spec.cell import Length
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep


def check_sweep(
    results: Results,
    sweep: Sweep,
    profile: Profile,
    *,
    seed: int,
    on_progress: Callable[[str], None],
) -> Preflight:
    """Examine the workloads of a sweep, and write the result into the results folder.

    The result of a part of the sweep is not written: what is kept is of all workloads. `on_progress`
    is called with the label of each workload. Raises HarnessError if a process does not get to the end
    of its checks; the log that it names stays.
    """
    with run_folder("check") as scratch:
        preflight = examine_sweep(sweep, seed, profile, scratch.path, on_progress)
    if sweep.whole() is sweep:
        write_preflight(results.sweep_folder(sweep.name).preflight_path, preflight)
    return preflight


def search_rates(
    results: Results,
    sweep: Sweep,
    profile: Profile,
    *,
    seeds: Sequence[int],
    length: Length,
    on_progress: Callable[[str], None],
) -> RateSearch:
    """Search the learning rates of a sweep's cells, and write the result for the report and MLflow.

    The result of a part of the sweep is not written. `length` is that of each training, and
    `on_progress` is called with the name of each. Raises HarnessError if a rank fails; the log that it
    names stays.
    """
    with run_folder("find-lr") as scratch:
        search = search_sweep(sweep, seeds, length, profile, scratch.path, on_progress)
    if sweep.whole() is sweep:
        write_search(results.sweep_folder(sweep.name), search)
    return search
