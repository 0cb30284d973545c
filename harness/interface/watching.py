"""The states of recorded sweeps, once or until nothing runs any more.

Only `watch` delivers the records of jobs to MLflow: a job has no access to the tracking server, and
reading the states once should not wait for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.render.status import StatusDisplay
from harness.slurm.status import LAG_SECONDS, SweepStatus, read_statuses
from harness.spec.sweep import Sweep
from harness.tracking.follow import Follower

WATCH_SECONDS = 5.0  # between two readings


def sweep_statuses(sweeps: Sequence[Sweep], results: Results) -> list[SweepStatus]:
    """Return the states of the sweeps now, with one call of squeue for all of them."""
    folders = [(sweep, results.sweep_folder(sweep.name)) for sweep in sweeps]
    return read_statuses(folders)


def readable_statuses(
    sweeps: Sequence[Sweep], results: Results
) -> tuple[list[SweepStatus], list[BadInput]]:
    """Return the states of the sweeps whose folders can be read, and an error for each other."""
    try:
        return sweep_statuses(sweeps, results), []
    except BadInput:
        pass  # at the price of a call of squeue for each sweep, find out which one it is
    statuses: list[SweepStatus] = []
    errors: list[BadInput] = []
    for sweep in sweeps:
        try:
            statuses += sweep_statuses([sweep], results)
        except BadInput as error:
            errors.append(error)
    return statuses, errors


def watch(
    sweeps: Sequence[Sweep],
    results: Results,
    tracking_uri: str | None,
    show_statuses: StatusDisplay,
) -> tuple[list[SweepStatus], str | None]:
    """Show the states again and again until there is nothing left to wait for.

    Records that jobs leave are delivered to MLflow as they come. Returns the last states, and what a
    delivery failed with.
    """
    patience = LagPatience()
    statuses = sweep_statuses(sweeps, results)
    folders = []
    for status in statuses:
        if len(sweeps) == 1 or not status.is_over:
            folders.append(results.sweep_folder(status.sweep.name))
    with Follower(results, folders, tracking_uri) as follower:
        show_statuses(statuses, None)
        while not patience.is_exhausted(statuses):
            time.sleep(WATCH_SECONDS)
            statuses = sweep_statuses(sweeps, results)
            show_statuses(statuses, None)
    return statuses, follower.trouble


class LagPatience:
    """Says when `watch` may stop: at the end of all trials, but later if one seems lost.

    The record of a trial that looks lost may exist, and not be visible yet on a shared file system.
    """

    def __init__(self) -> None:
        self.last_live_at = -math.inf  # seconds, by the monotonic clock

    def is_exhausted(self, statuses: Sequence[SweepStatus]) -> bool:
        """Return whether no trial is left to wait for.

        A sweep that was over from the start is not waited for. Call it after each reading: it
        remembers when a sweep last had trials to wait for.
        """
        now = time.monotonic()
        is_any_lost = False
        for status in statuses:
            if not status.is_over:
                self.last_live_at = now
                return False
            if any(trial.state == "lost" for trial in status.trials):
                is_any_lost = True
        return not is_any_lost or now > self.last_live_at + LAG_SECONDS
