"""Cancels the jobs of a sweep.

The folder is marked first, because scancel does not end a trial at once: its leader gets SIGTERM,
has the trial save, and would requeue the job if it did not read that it was cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.errors import HarnessError, one_line
from harness.core.paths import SweepFolder
from harness.core.processes import run_command
from harness.core.slurm_environment import client_variables
from harness.launch.controller import CALL_SECONDS
from harness.records.store import lock
from harness.slurm import queue as queues
from harness.slurm import submission as submissions


def cancel(sweep_folder: SweepFolder) -> Sequence[str]:
    """Cancel every job of the sweep that has not ended, with one call of scancel.

    Returns the ids of the jobs. Trials that were running continue from where they were when the
    sweep is submitted again.

    Raises SlurmDown if Slurm does not answer, HarnessError with its message if it refuses, and if
    scancel takes longer than CALL_SECONDS.
    """
    with lock(sweep_folder):
        submitted = submissions.read_all(sweep_folder)
        queue = queues.query_submitters(submitted)
        job_ids: list[str] = []
        for submission in submitted:
            live_jobs = queues.live_jobs([submission], queue).values()
            live_ids = list(dict.fromkeys(job.id for job in live_jobs))  # once for all its trials
            if live_ids:
                # Written before the jobs end: a leader that saves its trial reads it, and does not
                # requeue its job.
                submissions.folder_of(sweep_folder, submission.id).cancelled.touch()
            job_ids += live_ids
        if not job_ids:
            return job_ids
        # Variables such as SCANCEL_STATE would have it leave out jobs.
        completed = run_command(
            ["scancel", *job_ids],
            timeout=CALL_SECONDS,
            variables=client_variables(),
            remedy="no job may be cancelled yet: run harness cancel again once the controller answers",
        )
        if completed.returncode:
            raise HarnessError(f"scancel: {one_line(completed.stderr)}")
    return job_ids
