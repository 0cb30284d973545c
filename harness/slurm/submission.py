"""What was submitted, written down on the shared folder: which job runs which trials.

Each `harness submit` leaves a folder in the folder of the sweep:

    runs/SWEEP/jobs/20261122-104500-3fa2/
        submission.json    the submission: arrays, trials, profile, sweep
        submitit/          the batch scripts that submitit wrote
        81_0.log           output of job 81_0
        81_0.node          name of the node that leads job 81_0

`submission.json` is what makes the jobs independent of whoever submitted them: their leaders read
it, and so do `harness status`, `harness status cancel` and the next `harness submit`.
"""

from __future__ import annotations

import os
import pwd
import secrets
import socket
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from harness.core.errors import BadInput
from harness.core.paths import SweepFolder, safe_folder_name, write_atomically
from harness.core.private import FILE_MODE, make_private_folder, user_name
from harness.records.decode import FileFormat, decode_file
from harness.records.seal import sealed_text
from harness.slurm.packing import PackedArray, Packing
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep

SCHEMA = "2.6"  # of submission.json; `harness.records.decode` says what the numbers mean
SUBMISSION_FORMAT = FileFormat(
    name="submission",
    schema=SCHEMA,
    remedy="delete its folder once none of its jobs is in the queue",
    is_sealed=True,
)
NAME_LENGTH = 40  # characters of the sweep's name that a job's name begins with


@dataclass(frozen=True, kw_only=True)
class JobArray:
    """The jobs of one call of sbatch, which ask for the same resources."""

    nodes: int  # of each job
    ranks_per_node: int
    trial_ids: Sequence[Sequence[str]]  # of each job, in the order in which the trials run
    estimated_seconds: Sequence[float | None]  # of each job; None where it can't be estimated

    # The id that sbatch returned. None until then, and for good if whoever submitted was killed
    # before it was written down.
    slurm_id: str | None = None
    # Whether it was given up, because sbatch failed, or never returned and no job of it was in the
    # queue. Should Slurm have received it all the same, its jobs end at once.
    is_abandoned: bool = False

    def job_id(self, index: int) -> str | None:
        """Return the id of the job with this index as squeue prints it, such as 12_3; None if
        unknown.

        submitit submits a single job as a job, not as an array of one, so its id has no index.
        """
        if self.slurm_id is None:
            return None
        if len(self.trial_ids) == 1:
            return self.slurm_id  # submitit submits a single job as a job, not as an array of one
        return f"{self.slurm_id}_{index}"


@dataclass(frozen=True, kw_only=True)
class SubmittedJob:
    """One job of a submission, with everything by which it is found in the queue."""

    array: int  # number of its array in the submission
    index: int  # number of the job in its array, SLURM_ARRAY_TASK_ID
    trial_ids: Sequence[str]
    id: str | None  # None where the id that sbatch returned was never written down
    name: str


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The content of `submission.json`.

    It is written before the first call of sbatch, again after each, and once more when the jobs are
    cancelled.
    """

    schema: str = SCHEMA
    id: str
    created_at: float  # seconds since the epoch
    host: str  # on which `harness submit` ran
    user: str  # who ran it
    profile: Profile
    sweep: Sweep
    arrays: Sequence[JobArray]
    first_attempts: Mapping[str, int]  # by trial id, the first attempt made by this submission
    excluded_nodes: Sequence[str] = ()  # nodes on which an earlier attempt of these trials was lost
    cancelled_at: float | None = None  # seconds since the epoch

    def job_name(self, array: int) -> str:
        """Return the name that all jobs of an array have.

        It holds the submission's id, so that it is unlike the name of any other job: by it, jobs
        are recognized whose ids were never written down, and told from jobs of others that have the
        same id.
        """
        return f"{safe_folder_name(self.sweep.name)[:NAME_LENGTH]}-{self.id}-{array}"

    def jobs(self) -> Iterator[SubmittedJob]:
        """Yield every job of every array, in the order in which they were packed.

        Not those of abandoned arrays, whose trials a later submission may have.
        """
        for number, array in enumerate(self.arrays):
            if array.is_abandoned:
                continue
            for index, trial_ids in enumerate(array.trial_ids):
                yield SubmittedJob(
                    array=number,
                    index=index,
                    trial_ids=trial_ids,
                    id=array.job_id(index),
                    name=self.job_name(number),
                )

    def abandoned(self, arrays: Container[int]) -> Submission:
        """Return a copy in which the arrays with these numbers are abandoned."""
        copies = []
        for number, array in enumerate(self.arrays):
            copies.append(replace(array, is_abandoned=True) if number in arrays else array)
        return replace(self, arrays=copies)

    def with_slurm_id(self, array: int, slurm_id: str) -> Submission:
        """Return a copy in which an array has the id that sbatch returned for it."""
        arrays = list(self.arrays)
        arrays[array] = replace(arrays[array], slurm_id=slurm_id)
        return replace(self, arrays=arrays)


@dataclass(frozen=True, kw_only=True)
class SubmissionFolder:
    """The folder `jobs/<submission id>` in a sweep's folder."""

    path: Path

    @property
    def file(self) -> Path:
        """The submission itself."""
        return self.path / "submission.json"

    @property
    def submitit(self) -> Path:
        """The folder of submitit's own files: the batch script of each call of sbatch."""
        return self.path / "submitit"

    def node(self, job_id: str) -> Path:
        """Return the file with the name of the node that leads a job, or led it before a requeue.

        A leader that finds the file when it starts knows which node its predecessor was lost with.
        """
        return self.path / f"{job_id}.node"

    def restarts(self, job_id: str) -> Path:
        """Return the file that says how often a job had been started again when a trial ended."""
        return self.path / f"{job_id}.restarts"

    def exclusion(self, job_id: str) -> Path:
        """Return the file with the nodes that Slurm is about to leave out of a job's next start."""
        return self.path / f"{job_id}.exclude"

    def log(self, job_id: str) -> Path:
        """Return the output of a job's batch script, and so of the leader that the script runs."""
        return self.path / f"{job_id}.log"


def folder_of(sweep_folder: SweepFolder, submission_id: str) -> SubmissionFolder:
    """Return the folder of a submission."""
    return SubmissionFolder(path=sweep_folder.jobs_path / submission_id)


def new(
    sweep: Sweep,
    profile: Profile,
    packing: Packing,
    first_attempts: Mapping[str, int],
    excluded_nodes: Sequence[str] = (),
) -> Submission:
    """Return a submission by this user, on this host, now.

    Nothing is written, and nothing handed to Slurm yet. `first_attempts` are by trial id,
    `excluded_nodes` are names of nodes that no job should get.
    """
    return Submission(
        id=time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2),
        created_at=time.time(),
        host=socket.gethostname(),
        user=pwd.getpwuid(os.getuid()).pw_name,
        profile=profile,
        sweep=sweep,
        arrays=[_job_array(array) for array in packing.arrays],
        first_attempts=first_attempts,
        excluded_nodes=excluded_nodes,
    )


def _job_array(packed: PackedArray) -> JobArray:
    """Return what is written down of an array before it is submitted, with ids for trials."""
    trial_ids = []
    estimated_seconds = []
    for job in packed.jobs:
        trial_ids.append([trial.id for trial in job.trials])
        estimated_seconds.append(job.estimated_seconds)
    return JobArray(
        nodes=packed.nodes,
        ranks_per_node=packed.ranks_per_node,
        trial_ids=trial_ids,
        estimated_seconds=estimated_seconds,
    )


def write(sweep_folder: SweepFolder, submission: Submission) -> None:
    """Write the submission into its folder, or replace the one that is there.

    The file is replaced in one step, so that a job that starts at that moment reads a whole one. Only
    its owner can read it: it holds the values of the profile's variables.
    """
    folder = folder_of(sweep_folder, submission.id)
    make_private_folder(folder.path)
    content = sealed_text(asdict(submission))
    write_atomically(folder.file, content, mode=FILE_MODE)


def read(path: Path) -> Submission:
    """Read a `submission.json`.

    Raises BadInput if the file is not a submission, is not complete, or has another schema.
    """
    return decode_file(Submission, path, SUBMISSION_FORMAT)


def read_all(sweep_folder: SweepFolder) -> list[Submission]:
    """Read every submission of a sweep, oldest first.

    Raises BadInput as `read` does, and for a submission of somebody else, whose jobs may be in the
    queue.
    """
    submissions = []
    for folder in sweep_folder.jobs_path.glob("*"):
        path = SubmissionFolder(path=folder).file
        if _exists(path):
            submissions.append(read(path))
    return sorted(submissions, key=lambda submission: submission.created_at)


def _exists(path: Path) -> bool:
    """Return whether a submission was written; raises BadInput if only somebody else can know."""
    try:
        path.stat()
    except PermissionError:
        owner = user_name(path.parent.stat().st_uid)
        raise BadInput(
            f"{path.parent}: only {owner}, who submitted it, may read it; allowed: by {owner}"
        ) from None
    except OSError:
        return False
    return True
