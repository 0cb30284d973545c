"""Ending the jobs of a sweep."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace

from harness.core.errors import HarnessError, one_line
from harness.core.paths import SweepFolder
from harness.launch.sweep import lock
from harness.slurm import queue, submission


def cancel(folder: SweepFolder) -> Sequence[str]:
    """Cancel every job of the sweep that has not ended, with one call; returns their ids. Trials that were at work
    can go on from where they were when the sweep is submitted again.

    Raises SlurmDown, HarnessError where Slurm refuses.
    """
    with lock(folder):
        submitted = submission.read_all(folder)
        if not submitted:
            return []
        known = queue.ask(one.user for one in submitted)
        whole = queue.adopt(submitted, known)
        alive = {job.id for job in queue.live(whole, known).values()}
        jobs = sorted(alive, key=lambda job: [int(part) for part in job.split("_")])
        if not jobs:
            return []
        for one in (
            whole
        ):  # before they end: a leader that saves meanwhile must not go back into the queue
            if alive & {
                one.arrays[number].job_id(element) for number, element, _ in one.elements()
            }:
                submission.write(folder, replace(one, cancelled=time.time()))
        done = subprocess.run(["scancel", *jobs], capture_output=True, text=True, check=False)
        if done.returncode:
            raise HarnessError(f"scancel: {one_line(done.stderr)}")
    return jobs
