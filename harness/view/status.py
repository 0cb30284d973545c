"""Shows the states of sweeps: `harness status`, once or until they are over, and the list of `harness show`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from harness.core.text import counted
from harness.housekeeping import Removal, StoredSweep
from harness.slurm.status import SweepStatus, TrialState
from harness.view.value import Styled, byte_size, duration, styled
from harness.view.view import Table, View

# Trials in these states are listed however large the sweep is.
LISTED = ("running", "failed", "lost", "unreadable", "invalid", "interrupted")
MAX_ROWS = 100  # trials that are listed of a larger one
DAY = 24 * 3600.0  # seconds


def status_view(status: SweepStatus) -> View:
    """Return the state of every trial.

    Of a sweep with more than MAX_ROWS trials, only those are listed that are running or went wrong.
    """
    trials = list(status.trials)
    if len(trials) > MAX_ROWS:
        listed = [trial for trial in trials if trial.state in LISTED]
        trials = listed[:MAX_ROWS]
    result = {
        "sweep": status.sweep.name,
        "slurm_error": status.slurm_error,
        "trials": status.trials,
    }
    # Below the table, in a column of which a path would be broken.
    logs = [f"log: {trial.log}" for trial in trials if trial.log]
    return View(
        result=result,
        tables=[trial_table(trials)],
        lines=[*logs, *headlines(status)],
    )


def headlines(status: SweepStatus) -> list[list[str | Styled]]:
    """Return a sweep's state: `my sweep: 24 trials: 20 done, 2 running`, and whether Slurm answers."""
    counts = Counter(trial.state for trial in status.trials)
    line: list[str | Styled] = [
        Styled(status.sweep.name, "strong"),
        f": {counted(len(status.trials), 'trial')}",
    ]
    separator = ": "
    for state, count in counts.most_common():
        line += [f"{separator}{count} ", styled(state)]
        separator = ", "
    lines = [line]
    if status.slurm_error:
        lines.append([Styled(f"Slurm did not answer: {status.slurm_error}", "open")])
    return lines


def trial_table(trials: Sequence[TrialState]) -> Table:
    """Return a table with a row for each trial."""
    table = Table(
        ["trial", "cell", "seed", "repeat", "state", "step", "speed", "job", "nodes", ""],
        {"seed": "count", "repeat": "count", "step": "count", "speed": "count"},
    )
    # Repeats are counted from 0: in a sweep without further ones the column would be all zeros.
    is_repeated = any(trial.repeat for trial in trials)
    for trial in trials:
        step = speed = ""
        if trial.step is not None:
            step = f"{trial.step:,}"
            if trial.steps is not None:  # a script that ends when it likes has no such number
                step += f"/{trial.steps:,}"
        if trial.throughput:
            speed = f"{trial.throughput:,.0f} {trial.throughput_unit}"
        table.add_row(
            trial.trial,
            trial.label,
            trial.seed,
            trial.repeat if is_repeated else None,
            styled(trial.state),
            step,
            speed,
            trial.job,
            trial.nodes,
            trial.detail,
        )
    return table


def sweeps_view(sweeps: Sequence[StoredSweep]) -> View:
    """Return a row for each sweep that is on the disk."""
    table = Table(
        ["sweep", "trials", "size", "changed", ""],
        {"trials": "count", "size": "bytes", "changed": "number"},
    )
    total = 0
    for stored in sweeps:
        total += stored.bytes
        remark = "running" if stored.is_running else ""
        seconds = time.time() - stored.changed
        age = duration(seconds)
        if seconds >= 2 * DAY:
            age = counted(int(seconds / DAY), "day")
        table.add_row(stored.name, stored.trials, stored.bytes, f"{age} ago", remark)
    line = f"{counted(len(sweeps), 'sweep')}, {byte_size(total)}"
    return View(result=sweeps, tables=[table], lines=[line])


def removals_view(removals: Sequence[Removal]) -> View:
    """Return what there is to remove, a line each with its size and the reason, and the total."""
    if not removals:
        return View(result=removals, lines=["nothing to remove"])
    total = 0
    lines = []
    for removal in removals:
        total += removal.bytes
        lines.append(f"remove {removal.path} ({byte_size(removal.bytes)}, {removal.reason})")
    lines.append(f"{counted(len(removals), 'folder')}, {byte_size(total)}")
    return View(result=removals, lines=lines)
