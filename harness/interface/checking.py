"""What can be known of a sweep's workloads before they are trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.interface.folders import run_folder
from harness.preflight.rates import CellRates
from harness.preflight.report import WorkloadReport
from harness.preflight.runs import examine_sweep, search_sweep
from harness.spec.cell import Length
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep

LENGTH = Length(steps=200)  # of a training that searches a rate


def check_sweep(
    sweep: Sweep,
    profile: Profile,
    *,
    seed: int,
    on_progress: Callable[[str], None],
) -> list[WorkloadReport]:
    """Examine the workloads of a sweep; `on_progress` is called with the label of each.

    Raises HarnessError if a process does not get to the end of its checks; the log that it names stays.
    """
    with run_folder("check") as scratch:
        return examine_sweep(sweep, seed, profile, scratch.path, on_progress)


def search_rates(
    sweep: Sweep,
    profile: Profile,
    *,
    seeds: Sequence[int],
    on_progress: Callable[[str], None],
) -> list[CellRates]:
    """Search the learning rates of a sweep's cells.

    `on_progress` is called with the name of each training. Raises HarnessError if a rank fails; the
    log that it names stays.
    """
    with run_folder("find-lr") as scratch:
        return search_sweep(sweep, seeds, LENGTH, profile, scratch.path, on_progress)
