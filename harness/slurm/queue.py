"""Slurm's queue: one call of squeue for all jobs, however many there are.

A controller serves everybody on the cluster, and one that is asked about a thousand jobs one by one
becomes slow for all. So squeue is called once, for all jobs of the users who have submitted, and
its answer is matched with the submissions here.

sacct is not used: it needs a database that not every cluster has. A job that is not in the queue
has ended; how its trials ended is in their records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.core.errors import BadInput, HarnessError, one_line
from harness.core.paths import SweepFolder
from harness.launch import controller
from harness.launch.retries import runs_again
from harness.records.files import read_record_if_exists
from harness.slurm.submission import Submission, read_all

ANSWER_SECONDS = 30.0  # that the controller has to answer
FIELDS = {  # of a line of squeue: man squeue, --format
    "id": "%i",
    "state": "%T",
    "nodes": "%N",
    "name": "%j",
    "reason": "%r",  # comes last because it is free text, which may hold the separator
}
SEPARATOR = "|"
# A job does not come back from these states; squeue shows it for MinJobAge seconds more.
ENDED_STATES = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
}  # fmt: skip
# In these, the job exists, and none of its processes is running.
PENDING_STATES = {
    "PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "CONFIGURING",
    "SUSPENDED", "STOPPED",
}  # fmt: skip
# In these, the job's processes are being ended. It may be requeued afterwards.
ENDING_STATES = {"COMPLETING", "STAGE_OUT"}
# How squeue shows the pending jobs of an array in one line.
INDEX = r"\d{1,9}(?:-\d{1,9}(?::\d{1,9})?)?"  # 3, 0-8 or 0-8:2
PENDING_ARRAY = re.compile(
    rf"(?P<array>\d+)_\[(?P<indices>{INDEX}(?:,{INDEX})*)(?:%\d+)?\]", re.ASCII
)
BEGINS_WITH_ID = re.compile(r"\s*\d+(?:_\S*)?\s*(?:\||$)", re.ASCII)
# Of a job, of one job of an array, and of several of them.
JOB_ID = re.compile(rf"\d+(?:_\d+)?|{PENDING_ARRAY.pattern}", re.ASCII)
MAX_ARRAY_SIZE = 4_000_001  # Slurm's own ceiling on MaxArraySize


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """A job that has not ended, as squeue shows it."""

    id: str  # as in 12, or 12_3 for a job of an array
    state: str  # as Slurm spells it
    nodes: str  # as in n[1-2]; empty while it is pending
    name: str
    reason: str  # why it is pending

    @property
    def is_pending(self) -> bool:
        """Whether it waits in the queue, or is stopped, so that none of its trials is running."""
        return self.state in PENDING_STATES

    @property
    def is_ending(self) -> bool:
        """Whether its processes are being ended."""
        return self.state in ENDING_STATES

    @property
    def index(self) -> int:
        """Return which job of its array it is; submitit submits a single job as a job without an index."""
        return int(self.id.partition("_")[2] or 0)


class SlurmDown(HarnessError):
    """Slurm's controller did not answer: whether jobs exist is unknown."""


class NoSlurm(SlurmDown):
    """This machine has no squeue, so it can't be the one that submitted."""


def squeue_command(users: Iterable[str]) -> list[str]:
    """Return the command that lists every job of these users, a line for each job of an array.

    `--all` includes partitions that are hidden from the user.
    """
    names = ",".join(sorted(set(users)))
    line_format = SEPARATOR.join(FIELDS.values())
    return [
        "squeue",
        f"--user={names}",
        "--all",
        "--array",
        "--noheader",
        f"--format={line_format}",
    ]


def parse_squeue(text: str) -> dict[str, QueuedJob]:
    """Return the jobs that have not ended, by id.

    Lines that show no job are skipped: a slow controller adds warnings to the output. Raises
    SlurmDown for a line that shows a job only in part: a job that is passed over would count as
    ended, and its trials would run twice.
    """
    jobs: dict[str, QueuedJob] = {}
    for line in text.split("\n"):
        if not BEGINS_WITH_ID.match(line):
            continue
        values = line.strip().split(SEPARATOR, len(FIELDS) - 1)
        if len(values) < len(FIELDS) or not JOB_ID.fullmatch(values[0]):
            raise SlurmDown(f"squeue: found the line {one_line(line, 80)!r}, which is no whole job")
        shown = dict(zip(FIELDS, values, strict=True))
        if shown["state"] in ENDED_STATES:
            continue
        for job_id in _expand_array(shown["id"]):
            jobs[job_id] = QueuedJob(
                id=job_id,
                state=shown["state"],
                nodes=shown["nodes"],
                name=shown["name"],
                reason=shown["reason"],
            )
    return jobs


def _expand_array(job_id: str) -> list[str]:
    """Return the ids of all jobs that a line shows: 7_0, 7_1, 7_2 and 7_5 for `7_[0-2,5%4]`.

    In spite of `--array`, squeue may show the pending jobs of an array in one line. Ranges may have
    a step, as in `0-8:2`, and `%4` is how many may run at a time.
    """
    array = PENDING_ARRAY.fullmatch(job_id)
    if array is None:
        return [job_id]
    indices: list[int] = []
    for part in array["indices"].split(","):
        bounds, _, step = part.partition(":")
        low, _, high = bounds.partition("-")
        part_indices = range(int(low), int(high or low) + 1, int(step or 1) or 1)
        if len(indices) + len(part_indices) > MAX_ARRAY_SIZE:
            raise SlurmDown(f"squeue: found an array of more than {MAX_ARRAY_SIZE} jobs: {job_id}")
        indices += part_indices
    return [f"{array['array']}_{index}" for index in indices]


def query(
    users: Iterable[str], *, on_wait: Callable[[str], None] | None = None
) -> dict[str, QueuedJob]:
    """Ask squeue for the jobs of these users, by id. Without users, nothing is asked.

    With `on_wait`, a controller that is away is waited for, as `controller.call` does. Raises NoSlurm
    if this machine has no squeue, SlurmDown if Slurm does not answer.
    """
    names = set(users)
    if not names:
        return {}
    command = squeue_command(names)
    if on_wait is None:
        completed = controller.run_client(command, ANSWER_SECONDS)
    else:
        completed = controller.call(command, on_wait=on_wait)
    if completed.returncode == controller.NOT_INSTALLED:
        raise NoSlurm(one_line(completed.stderr))
    if completed.returncode:
        message = completed.stderr or f"exit code {completed.returncode}"
        raise SlurmDown(f"squeue: {one_line(message)}")
    return parse_squeue(completed.stdout)


def query_submitters(
    submissions: Iterable[Submission], *, on_wait: Callable[[str], None] | None = None
) -> dict[str, QueuedJob]:
    """Ask squeue for the jobs of everybody who made one of these submissions.

    Without submissions, nothing is asked. Waits and raises NoSlurm and SlurmDown as `query` does.
    """
    return query((submission.user for submission in submissions), on_wait=on_wait)


def live_jobs(
    submissions: Sequence[Submission], queue: Mapping[str, QueuedJob]
) -> dict[str, QueuedJob]:
    """Return, by trial id, the job that has not ended and has the trial."""
    queued = {(job.name, job.index): job for job in queue.values()}
    jobs: dict[str, QueuedJob] = {}
    for submission in submissions:
        for submitted in submission.jobs():
            job = queued.get((submitted.name, submitted.index))
            if job is not None:
                jobs |= dict.fromkeys(submitted.trial_ids, job)
    return jobs


def refuse_live_jobs(sweep_folder: SweepFolder) -> None:
    """Refuse a sweep of which a job that has not ended has trials.

    Where there is no squeue, nobody knows of the jobs. Then a sweep is refused unless all of its
    trials that were submitted have come to their end, as in a copy of a finished one.

    Raises BadInput if there is or may be such a job, SlurmDown if Slurm does not answer.
    """
    submissions = read_all(sweep_folder)
    try:
        queue = query_submitters(submissions)
    except NoSlurm as error:
        if all(_has_ended(sweep_folder, submission) for submission in submissions):
            return
        raise BadInput(
            f"{sweep_folder.path}: its jobs may still have trials, and Slurm can't be asked here ({error});"
            f" allowed: on a machine of the cluster, or after deleting {sweep_folder.jobs_path} once none"
            " of its jobs is in the queue"
        ) from None
    job_ids = {job.id for job in live_jobs(submissions, queue).values()}
    if job_ids:
        listed = one_line(", ".join(sorted(job_ids)), 60)
        raise BadInput(
            f"{sweep_folder.path}: jobs {listed} are running this sweep;"
            " wait for them or cancel them"
        )


def _has_ended(sweep_folder: SweepFolder, submission: Submission) -> bool:
    """Return whether all trials of a submission have come to their end since it was made."""
    reruns = submission.profile.validity.reruns
    for trial_id, first_attempt in submission.first_attempts.items():
        folder = sweep_folder.trial_folder(trial_id)
        record = read_record_if_exists(folder.record_path)
        if record is None or record.status == "interrupted":
            return False
        if submission.is_preceded_by(trial_id, record.attempt, record.started):
            return False
        if runs_again(record, folder, first_attempt, reruns):
            return False
    return True
