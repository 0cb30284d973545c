"""Slurm's queue: one call of squeue for all jobs, however many there are.

A controller serves everybody on the cluster, and one that is asked about a thousand jobs one by one
becomes slow for all. So squeue is called once, for all jobs of the users who have submitted, and
its answer is matched with the submissions here.

sacct is not used: it needs a database that not every cluster has. A job that is not in the queue
has ended; how its trials ended is in their records.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.core.errors import BadInput, HarnessError, one_line
from harness.core.paths import SweepFolder
from harness.core.progress import print_message
from harness.core.text import listed
from harness.launch import srun
from harness.slurm.submission import Submission, read_all

# Of a line of squeue: id, state, nodes, name, and why the job is pending. The last one is free text,
# which may hold the separator. (man squeue, --format)
FORMAT = "%i|%T|%N|%j|%r"
JOB_ID = re.compile(r"\d+(_\d+)?", re.ASCII)
RUNNING_STATES = {"RUNNING", "SIGNALING", "RESIZING"}


@dataclass(frozen=True)
class QueuedJob:
    """A job that has not ended, as squeue shows it; its fields are in the order of FORMAT."""

    id: str  # as in 12, or 12_3 for a job of an array
    state: str  # as Slurm spells it
    nodes: str  # as in n[1-2]; empty while it is pending
    name: str
    reason: str  # why it is pending

    @property
    def is_running(self) -> bool:
        """Whether its trials may run, which they don't while it waits in the queue or is ended."""
        return self.state in RUNNING_STATES

    @property
    def index(self) -> int:
        """Return which job of its array it is, 0 for a single job."""
        return int(self.id.partition("_")[2] or 0)


class SlurmDown(HarnessError):
    """Slurm's controller did not answer, or can't be asked here: whether jobs exist is unknown."""


def query(submissions: Sequence[Submission], patience: float = 0.0) -> list[QueuedJob]:
    """Ask squeue for the jobs of everybody who made one of these submissions.

    Without submissions, nothing is asked. A controller that is away is waited for `patience` seconds.
    Raises SlurmDown if Slurm does not answer, or this machine has no squeue.
    """
    users = sorted({str(submission.user_id) for submission in submissions})
    if not users:
        return []
    # --all: partitions that are hidden from the user too; --array: a line for each job of an array.
    command = ["squeue", f"--user={','.join(users)}", "--all", "--array", "--noheader"]
    command.append(f"--format={FORMAT}")
    completed = srun.call(command, patience=patience, on_wait=print_message)
    if completed.returncode:
        raise SlurmDown(one_line(completed.stderr or f"squeue: exit code {completed.returncode}"))
    return parse_squeue(completed.stdout)


def parse_squeue(text: str) -> list[QueuedJob]:
    """Return the jobs that squeue shows.

    Lines that show no job are skipped: a slow controller adds warnings to the output. Raises
    SlurmDown for a line that shows a job only in part: a job that is passed over would count as
    ended, and its trials would run twice.
    """
    jobs = []
    for line in text.split("\n"):
        values = line.strip().split("|", 4)
        if not values[0][:1].isdecimal():
            continue
        if len(values) < 5 or not JOB_ID.fullmatch(values[0]):
            raise SlurmDown(f"squeue: found the line {one_line(line, 80)!r}, which is no whole job")
        jobs.append(QueuedJob(*values))
    return jobs


def live_jobs(submission: Submission, queue: Sequence[QueuedJob]) -> dict[str, QueuedJob]:
    """Return, by trial id, the job of a submission that has not ended and has the trial."""
    queued = {(job.name, job.index): job for job in queue}
    jobs: dict[str, QueuedJob] = {}
    for submitted in submission.jobs():
        job = queued.get((submitted.name, submitted.index))
        if job is not None:
            jobs |= dict.fromkeys(submitted.trial_ids, job)
    return jobs


def live_submissions(
    sweep_folder: SweepFolder, patience: float = 0.0
) -> list[tuple[Submission, dict[str, QueuedJob]]]:
    """Return the submissions of a sweep that have jobs which have not ended, each with its `live_jobs`.

    Raises SlurmDown as `query` does.
    """
    submissions = read_all(sweep_folder)
    queue = query(submissions, patience)
    live = [(submission, live_jobs(submission, queue)) for submission in submissions]
    return [(submission, jobs) for submission, jobs in live if jobs]


def refuse_live_jobs(sweep_folder: SweepFolder) -> None:
    """Refuse a sweep of which a job that has not ended has trials.

    Raises BadInput if there is or, as far as Slurm says, may be such a job.
    """
    try:
        live = live_submissions(sweep_folder)
    except SlurmDown as error:
        raise BadInput(
            f"{sweep_folder.path}: its jobs may still have trials, and Slurm can't be asked here ({error});"
            f" allowed: on a machine of the cluster, or after deleting {sweep_folder.jobs_path} once none"
            " of its jobs is in the queue"
        ) from None
    if live:
        ids = sorted({job.id for _, jobs in live for job in jobs.values()})
        raise BadInput(
            f"{sweep_folder.path}: jobs {listed(ids)} are running this sweep; wait for them or cancel them"
        )
