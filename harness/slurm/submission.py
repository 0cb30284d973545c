"""What was submitted, written down on the shared folder: which job runs which trials.

Each `harness submit` leaves a folder in the folder of the sweep:

    runs/SWEEP/jobs/20261122-104500-3fa2/
        submission.json    the submission: arrays, trials, profile, sweep
        submitit/          the batch scripts that submitit wrote
        0-3.log            output of job 3 of array 0
        0-3.restarts       how often Slurm had started that job again when it got on
        cancelled          there once `harness cancel` has cancelled the jobs

`submission.json` is written once, before the first job is submitted. It makes the jobs independent of
whoever submitted them: their leaders read it, and so do `harness status`, `harness cancel` and the next
`harness submit`. Of several submissions that have a trial, the last one counts.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from harness.core.errors import BadInput
from harness.core.files import FILE_MODE, make_private_folder
from harness.core.paths import SweepFolder, safe_folder_name, write_atomically
from harness.records.format import FileFormat, decode_file, sealed_text
from harness.sweep.cluster import Profile
from harness.sweep.sweep import Sweep

SCHEMA = 6  # of submission.json
SUBMISSION_FORMAT = FileFormat(
    name="submission",
    schema=SCHEMA,
    remedy="delete its folder once none of its jobs is in the queue",
    is_sealed=True,
)
NAME_LENGTH = 40  # characters of the sweep's name that a job's name begins with
SUBMISSION = "submission.json"
CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True)
class JobArray:
    """The jobs of one call of sbatch, which ask for the same resources."""

    nodes: int  # of each job
    ranks_per_node: int
    trial_ids: Sequence[Sequence[str]]  # of each job, in the order in which the trials run


@dataclass(frozen=True, kw_only=True)
class SubmittedJob:
    """One job of a submission, as it is found in the queue: by the name and the index in its array."""

    trial_ids: Sequence[str]
    name: str
    index: int
    log: str  # the name of the file with what its batch script printed


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The content of `submission.json`, and whether its jobs were cancelled."""

    schema: int = SCHEMA
    id: str = field(default_factory=lambda: time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2))
    # Seconds since the epoch: attempts that began earlier were made by others.
    created_at: float = field(default_factory=time.time)
    user_id: int = field(default_factory=os.getuid)  # of who ran it
    profile: Profile
    sweep: Sweep
    arrays: Sequence[JobArray]
    is_cancelled: bool = False

    def job_name(self, array: int) -> str:
        """Return the name that all jobs of an array have.

        It holds the submission's id, so that it is unlike the name of any other job.
        """
        return f"{safe_folder_name(self.sweep.name)[:NAME_LENGTH]}-{self.id}-{array}"

    def jobs(self) -> Iterator[SubmittedJob]:
        """Yield every job of every array, in the order in which they were packed."""
        for number, array in enumerate(self.arrays):
            name = self.job_name(number)
            for index, trial_ids in enumerate(array.trial_ids):
                log = f"{number}-{index}.log"
                yield SubmittedJob(trial_ids=trial_ids, name=name, index=index, log=log)

    @property
    def trial_ids(self) -> list[str]:
        """Return the ids of the trials of all its jobs."""
        return [trial_id for job in self.jobs() for trial_id in job.trial_ids]


def folder_of(sweep_folder: SweepFolder, submission_id: str) -> Path:
    """Return the folder of a submission."""
    return sweep_folder.jobs_path / submission_id


def write(sweep_folder: SweepFolder, submission: Submission) -> None:
    """Write the submission into its folder.

    Only its owner can read it: it holds the values of the profile's variables.
    """
    folder = folder_of(sweep_folder, submission.id)
    make_private_folder(folder)
    write_atomically(folder / SUBMISSION, sealed_text(asdict(submission)), mode=FILE_MODE)


def read(folder: Path) -> Submission:
    """Read the submission in a folder.

    Raises BadInput if the file is not a submission, is not complete, or has another schema.
    """
    submission = decode_file(Submission, folder / SUBMISSION, SUBMISSION_FORMAT)
    return replace(submission, is_cancelled=(folder / CANCELLED).exists())


def read_all(sweep_folder: SweepFolder) -> list[Submission]:
    """Read every submission of a sweep, oldest first.

    Raises BadInput as `read` does, and for a submission of somebody else, whose jobs may be in the
    queue.
    """
    submissions = []
    for folder in sweep_folder.jobs_path.glob("*"):
        try:
            (folder / SUBMISSION).stat()
        except PermissionError:
            raise BadInput(f"{folder}: only the user who submitted it may read it") from None
        except OSError:  # it was not written
            continue
        submissions.append(read(folder))
    return sorted(submissions, key=lambda submission: submission.created_at)
