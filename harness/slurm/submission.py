"""What was submitted, on the shared folder: which job runs which trials."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from harness.core.paths import SweepFolder, safe_folder_name, write_atomically
from harness.records.restore import restore_file
from harness.slurm.packing import Packing
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class JobArray:
    """One call of sbatch."""

    nodes: int
    ranks_per_node: int
    loads: Sequence[Sequence[str]]  # trials of each job, in the order in which they run
    seconds: Sequence[float | None]  # estimated of each job
    job: str | None = (
        None  # the id that sbatch gave; None before, and where whoever submitted died meanwhile
    )

    def job_id(self, element: int) -> str | None:
        """As squeue shows it: submitit makes an array of two jobs or more."""
        return self.job if self.job is None or len(self.loads) == 1 else f"{self.job}_{element}"


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One `harness submit`: `submission.json`."""

    schema: int = SCHEMA
    id: str
    created: float  # seconds since the epoch
    host: str
    user: str
    profile: Profile
    sweep: Sweep
    arrays: Sequence[JobArray]
    attempts: Mapping[str, int]  # of each trial, the first that belongs to this submission
    excluded: Sequence[str] = ()  # nodes on which an earlier attempt of these trials was lost
    cancelled: float | None = None

    def name(self, array: int) -> str:
        """The name of an array's jobs, by which they are known again."""
        return f"{safe_folder_name(self.sweep.name)[:40]}-{self.id}-{array}"

    def elements(self) -> Iterator[tuple[int, int, Sequence[str]]]:
        """(array, element, trials) of every job."""
        for number, array in enumerate(self.arrays):
            for element, trials in enumerate(array.loads):
                yield number, element, trials

    def with_job(self, array: int, job: str) -> Submission:
        arrays = list(self.arrays)
        arrays[array] = replace(arrays[array], job=job)
        return replace(self, arrays=arrays)


@dataclass(frozen=True, kw_only=True)
class SubmissionFolder:
    """`jobs/<id>` in a sweep's folder."""

    path: Path

    @property
    def file(self) -> Path:
        return self.path / "submission.json"

    @property
    def submitit(self) -> Path:
        return self.path / "submitit"

    def node(self, job: str) -> Path:
        """The name of the node that leads a job, or led it before the job went back into the queue."""
        return self.path / f"{job}.node"

    def log(self, job: str) -> Path:
        """What a job's leader, and all that the batch script runs, has written."""
        return self.path / f"{job}.log"


def folder_of(sweep: SweepFolder, submission_id: str) -> SubmissionFolder:
    return SubmissionFolder(path=sweep.path / "jobs" / submission_id)


def new(
    sweep: Sweep,
    profile: Profile,
    packing: Packing,
    attempts: Mapping[str, int],
    excluded: Sequence[str] = (),
) -> Submission:
    return Submission(
        id=time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2),
        created=time.time(),
        host=socket.gethostname(),
        user=pwd.getpwuid(os.getuid()).pw_name,
        profile=profile,
        sweep=sweep,
        arrays=[
            JobArray(
                nodes=array.nodes,
                ranks_per_node=array.ranks_per_node,
                loads=[[trial.id for trial in load.trials] for load in array.loads],
                seconds=[load.seconds for load in array.loads],
            )
            for array in packing.arrays
        ],
        attempts=attempts,
        excluded=excluded,
    )


def write(folder: SweepFolder, submission: Submission) -> None:
    content = json.dumps(asdict(submission), indent=1, default=str) + "\n"
    write_atomically(folder_of(folder, submission.id).file, content)


def read(path: Path) -> Submission:
    """Raises BadInput for what is no submission, not whole, or of another schema."""
    return restore_file(Submission, path, "submission", SCHEMA)


def read_all(folder: SweepFolder) -> list[Submission]:
    """The sweep's submissions, oldest first. Raises BadInput."""
    found = [read(path) for path in folder.path.glob("jobs/*/submission.json")]
    return sorted(found, key=lambda submission: submission.created)
