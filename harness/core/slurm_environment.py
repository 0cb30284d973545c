"""The variables with which Slurm's programs are called, and those that a job's tasks get.

Each program reads variables that stand for its options. They go before what a batch script says,
so that `SBATCH_TIMELIMIT` of the submitter's shell would replace the time limit of the profile
without a word. sbatch also hands the shell's variables on to the job, where srun reads some, such
as `SLURM_MEM_PER_CPU`, as options again. See "INPUT ENVIRONMENT VARIABLES" in the manual pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

OPTION_PREFIXES = (
    "SACCT_", "SALLOC_", "SBATCH_", "SCANCEL_", "SCONTROL_", "SINFO_", "SQUEUE_", "SRUN_",
)  # fmt: skip
JOB_PREFIXES = ("SLURM_", "SLURMD_")  # what a job has, and what srun and sbatch read
# Where Slurm is and who asks, which is not for a profile to say.
CONNECTION = {"SLURM_CLUSTERS", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"}


def own_job_id() -> str:
    """Return the id of the job that this process runs in: 71, or 71_3 for a task of an array.

    The last task of an array has the array's own id as SLURM_JOB_ID, and clients such as
    `scontrol requeue` take that for all tasks.
    """
    array_id = os.environ.get("SLURM_ARRAY_JOB_ID")
    if array_id is None:
        return os.environ["SLURM_JOB_ID"]
    return f"{array_id}_{os.environ['SLURM_ARRAY_TASK_ID']}"


def client_variables() -> dict[str, str]:
    """Return the variables for a program that asks Slurm or controls a job, without its options.

    A job's own variables stay.
    """
    variables = os.environ.items()
    return {name: value for name, value in variables if not name.startswith(OPTION_PREFIXES)}


def submission_variables() -> dict[str, str]:
    """Return the variables for sbatch, without options and without those of a job around us."""
    variables = client_variables()
    for name in list(variables):
        if name.startswith(JOB_PREFIXES) and name not in CONNECTION:
            del variables[name]
    return variables


def ignored_variables() -> list[str]:
    """Return the names of the shell's variables that would have changed a submission, sorted.

    Inside a job, the variables that Slurm itself has set are not the user's and left out.
    """
    prefixes: tuple[str, ...] = ("SBATCH_",)
    if "SLURM_JOB_ID" not in os.environ:
        prefixes += JOB_PREFIXES
    names = {name for name in os.environ if name.startswith(prefixes)}
    return sorted(names - CONNECTION)


@contextmanager
def submission_environment(umask: int) -> Iterator[None]:
    """Have the block call sbatch with `submission_variables`: submitit takes them from os.environ.

    `umask` is that of the job, which sbatch would otherwise take from this process.
    """
    previous = dict(os.environ)
    variables = submission_variables()
    os.environ.clear()
    os.environ.update(variables, SLURM_UMASK=f"{umask:04o}")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(previous)
