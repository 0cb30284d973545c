"""The states of recorded sweeps, once or until nothing runs any more.

Only `watch` delivers the records of jobs to MLflow: a job has no access to the tracking server, and
reading the states once should not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.slurm.status import SweepStatus, read_statuses, until_over
from harness.sweep.sweep import Sweep
from harness.tracking.follow import Follower
from harness.view.status import StatusDisplay

WATCH_SECONDS = 5.0  # between two readings


def sweep_statuses(
    sweeps: Sequence[Sweep], results: Results, errors: list[BadInput] | None = None
) -> list[SweepStatus]:
    """Return the states of the sweeps now, with one call of squeue for all of them.

    Raises BadInput for one that can't be read; with `errors`, it is added there instead.
    """
    folders = [(sweep, results.sweep_folder(sweep.name)) for sweep in sweeps]
    return read_statuses(folders, errors)


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
    readings = until_over(lambda: sweep_statuses(sweeps, results), WATCH_SECONDS)
    statuses = next(readings)
    folders = []
    for status in statuses:
        if len(sweeps) == 1 or not status.is_over:
            folders.append(results.sweep_folder(status.sweep.name))
    with Follower(results, folders, tracking_uri) as follower:
        show_statuses(statuses, None)
        for statuses in readings:
            show_statuses(statuses, None)
    return statuses, follower.trouble
