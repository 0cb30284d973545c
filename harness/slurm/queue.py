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
from harness.core.text import counted
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
# Reasons for which Slurm keeps a job pending for good.
HOPELESS_REASONS = {
    "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS",
    "PartitionNodeLimit", "PartitionTimeLimit",
}  # fmt: skip
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

    def hold_remedy(self) -> str | None:
        """Return what starts a job that Slurm does not start, None for any other.

        A job is held by its user, by an administrator, or by Slurm when it could not be launched,
        as in `launch failed requeued held`.
        """
        if not self.is_pending:
            return None
        if self.reason in HOPELESS_REASONS:
            return "cancel it, change the profile and submit again"
        is_held = "held" in self.reason.lower() or self.state in ("REQUEUE_HOLD", "SPECIAL_EXIT")
        return f"`scontrol release {self.id}` starts it" if is_held else None


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


def recover_job_ids(
    submissions: Sequence[Submission], queue: Mapping[str, QueuedJob]
) -> list[Submission]:
    """Return the submissions with ids of arrays that were never written down.

    Whoever submitted may have been killed between the return of sbatch and the write. The jobs are
    recognized in the queue by their name.
    """
    array_ids = {}
    for job in queue.values():
        array_id, _, _index = job.id.partition("_")
        array_ids[job.name] = array_id
    recovered = []
    for submission in submissions:
        complete = submission
        for number, array in enumerate(submission.arrays):
            name = submission.job_name(number)
            if array.slurm_id is None and name in array_ids:
                complete = complete.with_slurm_id(number, array_ids[name])
        recovered.append(complete)
    return recovered


def live_jobs(
    submissions: Sequence[Submission], queue: Mapping[str, QueuedJob]
) -> dict[str, QueuedJob]:
    """Return, by trial id, the job that has not ended and has the trial.

    Slurm counts ids from 1 again at some point, so a job with the same id and another name is
    somebody else's.
    """
    jobs: dict[str, QueuedJob] = {}
    for submission in recover_job_ids(submissions, queue):
        for submitted in submission.jobs():
            queued = queue.get(submitted.id or "")
            if queued is not None and queued.name == submitted.name:
                jobs |= dict.fromkeys(submitted.trial_ids, queued)
    return jobs


def refuse_live_jobs(sweep_folder: SweepFolder) -> None:
    """Refuse a sweep of which a job that has not ended has trials.

    Where there is no squeue, nobody knows of the jobs. Then a sweep is refused unless all of its
    trials that were submitted have ended for good, as in a copy of a finished one.

    Raises BadInput if there is or may be such a job, SlurmDown if Slurm does not answer.
    """
    submissions = read_all(sweep_folder)
    try:
        queue = query_submitters(submissions)
    except NoSlurm as error:
        open_trials = sum(_count_open_trials(sweep_folder, made) for made in submissions)
        if open_trials == 0:
            return
        raise BadInput(
            f"{sweep_folder.path}: its jobs may still have {counted(open_trials, 'trial')}, and Slurm can't be"
            f" asked here ({error}); allowed: on a machine of the cluster, or after deleting"
            f" {sweep_folder.path / 'jobs'} once none of its jobs is in the queue"
        ) from None
    job_ids = {job.id for job in live_jobs(submissions, queue).values()}
    if job_ids:
        listed = one_line(", ".join(sorted(job_ids)), 60)
        raise BadInput(
            f"{sweep_folder.path}: jobs {listed} are running this sweep;"
            " wait for them or cancel them"
        )


def _count_open_trials(sweep_folder: SweepFolder, submission: Submission) -> int:
    """Return how many trials of a submission would run, or run again, if its jobs still exist."""
    count = 0
    for job in submission.jobs():
        for trial_id in job.trial_ids:
            folder = sweep_folder.trial_folder(trial_id)
            record = read_record_if_exists(folder.record_path)
            reruns = submission.profile.validity.reruns
            if (
                record is None
                or record.status == "interrupted"
                or submission.is_preceded_by(trial_id, record.attempt, record.started)
                or runs_again(record, folder, submission.first_attempts[trial_id], reruns)
            ):
                count += 1
    return count
