"""Running a sweep on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.analysis import adaptive
from harness.api.data import SweepData, load
from harness.api.planning import (
    Data,
    Settings,
    data_texts,
    estimate_cells,
    load_planned,
    settings_texts,
)
from harness.core.paths import Results, results_folder
from harness.launch import sweep as runner
from harness.launch.sweep import Redo
from harness.measure.host import load_of_others
from harness.records.record import Record
from harness.slurm.queue import refuse_live_jobs
from harness.sweep.cell import Trial
from harness.sweep.cluster import Profile, with_tolerance
from harness.sweep.sweep import Sweep
from harness.tracking.follow import Follower
from harness.view.console import TerminalConsole
from harness.view.plan import busy_line, describe_duration
from harness.view.run import RunView


class LocalRun(RunView):
    """A sweep that runs on this machine: how long it will take, and whether other programs disturb it."""

    def __init__(
        self, sweep: Sweep, profile: Profile, results: Results, console: TerminalConsole
    ) -> None:
        super().__init__(sweep, results, console)
        self.profile = profile

    def describe_time(self, pending: Sequence[Trial]) -> str:
        """Return the end of the first line: how long the trials will take."""
        if not pending:
            return ""
        cells = {trial.cell.id: trial.cell for trial in pending}
        estimates = estimate_cells(list(cells.values()), self.results)
        return f"; {describe_duration(pending, estimates)}"

    def machine_lines(self, pending: Sequence[Trial]) -> list[str]:
        """Return a line on a machine whose cores other programs want, where that is not allowed."""
        if not pending or self.profile.validity.contention is None:
            return []
        cores = os.cpu_count() or 1
        wanted = max(trial.cell.axes.world_size for trial in pending)
        load = load_of_others()
        # One more core than they lack: this command's own processes count too.
        if load is None or load <= max(0, cores - wanted) + 1:
            return []
        return [busy_line(load, cores)]


def run(
    sweep: str | Path,
    *,
    settings: Settings = (),
    data: Data = (),
    only: Sequence[str] = (),
    cluster: str = "local",
    results: str | Path | None = None,
    tracking_uri: str | None = None,
    force: bool = False,
    fail_fast: bool = False,
    until: str = "",
    budget: str = "",
    tolerate_load: bool = False,
    progress: bool = True,
) -> SweepData:
    """Run a sweep on this machine, or resume it, and return what it has recorded.

    The arguments are the options of `harness run`; `settings`, `data` and `only` are those
    of `plan`, and what they leave out is not in the result either: `load` returns all of a sweep.
    `budget` is text such as `30m`. With `progress`, a bar and
    a line for each trial are printed. A trial that fails raises nothing: its `status` says so.

    Raises BadInput before anything starts for a mistake in any argument, and KeyboardInterrupt once
    the running trial is saved.

    >>> import harness
    >>> sweep = harness.run("quickstart", settings={"seeds": [0]})  # doctest: +SKIP
    >>> harness.run("quickstart", settings={"precison": "bf16"})
    Traceback (most recent call last):
    ...
    harness.core.errors.BadInput: --set precison="bf16": unknown axis or key; did you mean 'precision'?
    """
    # All that can be refused is refused before the first trial: options, sweep and profile.
    goal = adaptive.goal(until, budget)
    folder = results_folder(results)
    texts = settings_texts(settings), data_texts(data)
    loaded, profile = load_planned(str(sweep), *texts, cluster, only=only, results=folder)
    profile = with_tolerance(profile, tolerate_load=tolerate_load)
    redo: Redo = "all" if force else "failed"
    sweep_folder = folder.sweep_folder(loaded.name)
    view = LocalRun(loaded, profile, folder, TerminalConsole(quiet=not progress))

    def run_pending(sweep: Sweep, is_further_repeat: bool) -> list[Record]:
        """Run the trials of the sweep that are pending, and return all of its records."""
        return runner.run(
            sweep,
            profile,
            sweep_folder,
            view,
            redo=redo,
            # What this command has just run, it must not run once more for a further repeat.
            from_repeat=sweep.repeats - 1 if is_further_repeat else 0,
            fail_fast=fail_fast,
            # A job in Slurm's queue may have the same trials, and would write the same folders.
            check=refuse_live_jobs,
        )

    follower = Follower(folder, [sweep_folder], tracking_uri)  # before anything is shown
    with view:
        with follower as delivery:
            adaptive.run_until(goal, loaded, run_pending, fail_fast=fail_fast)
            view.show_delivery()
        if delivery.trouble is not None:
            view.on_message(delivery.trouble)
    return replace(load(loaded.name, folder.path, only=only), trouble=delivery.trouble)
