"""Slurm's queue: one query for all jobs, whatever their number."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.core.errors import BadInput, HarnessError, one_line
from harness.core.paths import SweepFolder
from harness.slurm.submission import Submission, read_all

PATIENCE = 30.0  # seconds that the controller has to answer
FIELDS = (
    "%i",
    "%T",
    "%S",
    "%N",
    "%j",
    "%r",
)  # id, state, start, nodes, name, reason: man squeue, --format
ENDED = {  # states that a job does not come back from
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "REVOKED", "TIMEOUT",
}  # fmt: skip
WAITING = {
    "PENDING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "CONFIGURING",
    "SUSPENDED",
    "STOPPED",
}
ARRAY = re.compile(r"(?P<job>\d+)_\[(?P<elements>[\d,:-]+)(?:%\d+)?\]")


@dataclass(frozen=True, kw_only=True)
class Queued:
    """A job that Slurm knows of."""

    id: str  # as in 12 or, of an array, 12_3
    state: str  # Slurm's word
    nodes: str
    name: str
    reason: str

    @property
    def waiting(self) -> bool:
        return self.state in WAITING


class SlurmDown(HarnessError):
    """Slurm's controller did not answer."""


class NoSlurm(SlurmDown):
    """This machine has no squeue."""


def command(users: Iterable[str]) -> list[str]:
    """What asks for every job of these users, the elements of arrays one by one."""
    who = f"--user={','.join(sorted(set(users)))}"
    return ["squeue", who, "--all", "--array", "--noheader", f"--format={'|'.join(FIELDS)}"]


def parse(text: str) -> dict[str, Queued]:
    """The jobs by id; lines that are no job, such as warnings, are passed over."""
    found: dict[str, Queued] = {}
    for line in text.splitlines():
        parts = line.strip().split("|", len(FIELDS) - 1)
        if len(parts) < len(FIELDS) or not parts[0][:1].isdigit():
            continue
        job, state, _, nodes, name, reason = parts
        if state in ENDED:
            continue
        for one in _elements(job):
            found[one] = Queued(id=one, state=state, nodes=nodes, name=name, reason=reason)
    return found


def _elements(job: str) -> list[str]:
    """`7_[0-2,5%4]` is 7_0, 7_1, 7_2 and 7_5: a squeue that was asked for elements may still put them together."""
    array = ARRAY.fullmatch(job)
    if array is None:
        return [job]
    numbers: list[int] = []
    for part in array["elements"].split(","):
        ends, _, step = part.partition(":")
        first, _, last = ends.partition("-")
        numbers += range(int(first), int(last or first) + 1, int(step or 1))
    return [f"{array['job']}_{number}" for number in numbers]


def ask(users: Iterable[str]) -> dict[str, Queued]:
    """The queue now. Raises NoSlurm where there is none, SlurmDown where it does not answer."""
    plain = {
        name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")
    }  # they hide jobs
    try:
        done = subprocess.run(
            command(users), env=plain, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except FileNotFoundError as error:
        raise NoSlurm(f"squeue: {one_line(error)}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmDown(f"squeue: {one_line(error)}") from None
    if done.returncode:
        raise SlurmDown(f"squeue: {one_line(done.stderr or f'exit code {done.returncode}')}")
    return parse(done.stdout)


def adopt(submissions: Sequence[Submission], queue: Mapping[str, Queued]) -> list[Submission]:
    """With the ids that whoever submitted did not live to write down, found by the jobs' names."""
    by_name = {job.name: job.id.partition("_")[0] for job in queue.values()}
    adopted = []
    for submission in submissions:
        whole = submission
        for number, array in enumerate(submission.arrays):
            if array.job is None and submission.name(number) in by_name:
                whole = whole.with_job(number, by_name[submission.name(number)])
        adopted.append(whole)
    return adopted


def live(submissions: Sequence[Submission], queue: Mapping[str, Queued]) -> dict[str, Queued]:
    """The job of every trial that a job which has not ended has, by trial."""
    found: dict[str, Queued] = {}
    for submission in adopt(submissions, queue):
        for number, element, trials in submission.elements():
            job = queue.get(submission.arrays[number].job_id(element) or "")
            if job is not None and job.name == submission.name(
                number
            ):  # ids come back, names don't
                found |= dict.fromkeys(trials, job)
    return found


def refuse_live_jobs(folder: SweepFolder) -> None:
    """Raises BadInput if a job that has not ended has trials of this sweep, SlurmDown if that can't be told.

    A machine without Slurm is believed: its user may have copied the folder there.
    """
    submitted = read_all(folder)
    try:
        found = live(submitted, ask(one.user for one in submitted)) if submitted else {}
    except NoSlurm:
        return
    if found:
        jobs = ", ".join(sorted({job.id for job in found.values()}))
        raise BadInput(
            f"{folder.path}: jobs {one_line(jobs, 60)} are at work on this sweep; wait for them or cancel them"
        )
