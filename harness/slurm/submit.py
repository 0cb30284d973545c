"""`harness submit`: what is pending is packed into jobs, written down on the shared folder, handed over by submitit."""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.errors import BadInput, HarnessError, one_line
from harness.core.paths import SweepFolder
from harness.launch.sweep import Redo, lock, plan, write_spec
from harness.records.record import Record, read_record_if_exists
from harness.slurm import queue
from harness.slurm import submission as submissions
from harness.slurm.leader import lead
from harness.slurm.packing import pack
from harness.slurm.submission import JobArray, Submission, SubmissionFolder
from harness.spec import partitions
from harness.spec.cluster import Profile, check_shared_folder
from harness.spec.slurm import SlurmOptions
from harness.spec.sweep import Sweep

if TYPE_CHECKING:
    from submitit import SlurmExecutor

SETUP = "setup: "  # how a line of the job's log begins that tells of a line of the profile's setup


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A submission that has not been handed to Slurm yet."""

    submission: Submission
    finished: int  # trials that are done
    live: int  # trials that jobs of earlier submissions have
    remarks: Sequence[str]

    @property
    def trials(self) -> int:
        return sum(len(load) for _, _, load in self.submission.elements())


def submit(
    sweep: Sweep,
    profile: Profile,
    folder: SweepFolder,
    *,
    redo: Redo,
    estimates: Mapping[str, float],
    told: Callable[[Prepared], None],
) -> Submission:
    """Submit what is pending and no job has. `estimates` are seconds by cell id.

    Raises BadInput if another process is at this sweep, HarnessError where Slurm refuses.
    """
    with lock(folder):
        prepared = prepare(sweep, profile, folder, redo=redo, estimates=estimates)
        told(prepared)
        submission = prepared.submission
        if not submission.arrays:
            return submission
        write_spec(sweep, folder)
        submissions.write(folder, submission)
        for number in range(len(submission.arrays)):
            submission = submission.with_job(number, hand_over(folder, submission, number))
            submissions.write(folder, submission)
    return submission


def prepare(
    sweep: Sweep,
    profile: Profile,
    folder: SweepFolder,
    *,
    redo: Redo,
    estimates: Mapping[str, float],
) -> Prepared:
    """Starts nothing. Raises SlurmDown where earlier jobs may be live and Slurm does not say."""
    todo = plan(sweep, folder, redo)
    earlier = submissions.read_all(folder)
    live = queue.live(earlier, queue.ask(one.user for one in earlier)) if earlier else {}
    pending = [trial for trial in todo.pending if trial.id not in live]
    wanted = {trial.id for trial in pending}
    blocks = [[trial for trial in block if trial.id in wanted] for block in sweep.blocks()]
    packing = pack(
        [block for block in blocks if block],
        estimates,
        ranks_per_node=profile.slurm.ranks_per_node,
        limit=profile.slurm.time_limit_seconds - profile.slurm.warning,
        parallel=profile.slurm.array_parallelism,
    )
    known = {
        trial.id: read_record_if_exists(folder.trial_folder(trial.id).record_path)
        for trial in pending
    }
    attempts = {trial: found.attempt + 1 if found else 1 for trial, found in known.items()}
    excluded, remarks = _bad_nodes([found for found in known.values() if found], profile.slurm)
    return Prepared(
        submission=submissions.new(sweep, profile, packing, attempts, excluded),
        finished=len(todo.finished),
        live=len(todo.pending) - len(pending),
        remarks=[*packing.remarks, *remarks],
    )


def _bad_nodes(known: Sequence[Record], slurm: SlurmOptions) -> tuple[list[str], list[str]]:
    """Nodes that no job is to have, and what to say of nodes that trials were lost with."""
    bad = sorted({node for found in known for node in found.bad_nodes})
    if not bad or partitions.can_exclude_nodes(bad, slurm):
        return bad, [f"node {node} is left out: a trial was lost with it" for node in bad]
    return [], [
        f"a trial was lost with {', '.join(bad)}; without, there are too few nodes, so nothing is left out"
    ]


def hand_over(folder: SweepFolder, submission: Submission, number: int) -> str:
    """Call sbatch once, for one array; returns the job's id. Raises HarnessError with sbatch's own words."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    array, place = submission.arrays[number], str(folder.path.absolute())
    try:
        calls = [(place, submission.id, number, element) for element in range(len(array.loads))]
        with contextlib.redirect_stderr(
            io.StringIO()
        ):  # where submitit repeats the words that the error holds
            jobs = executor(folder, submission, number).map_array(lead, *zip(*calls, strict=True))
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        raise HarnessError(
            f"{one_line(error)}; {number} of {len(submission.arrays)} arrays were submitted"
        ) from None
    return str(jobs[0].job_id).partition("_")[0]


def script(folder: SweepFolder, submission: Submission, number: int) -> str:
    """The batch script that sbatch gets for an array."""
    made = executor(folder, submission, number)
    count = len(submission.arrays[number].loads)
    made.parameters |= {"map_count": count} if count > 1 else {}
    return str(made._make_submission_file_text(made._submitit_command_str, ""))


def executor(folder: SweepFolder, submission: Submission, number: int) -> SlurmExecutor:
    """submitit's, set up for an array."""
    place = submissions.folder_of(folder, submission.id)
    made = batch(
        place, submission.profile.slurm, submission.arrays[number], submission.name(number)
    )
    own = submission.profile.slurm.options.get("exclude")
    made.update_parameters(exclude=",".join([*filter(None, [own]), *submission.excluded]) or None)
    return made


def batch(
    place: SubmissionFolder, slurm: SlurmOptions, array: JobArray, name: str
) -> SlurmExecutor:
    """submitit's, for jobs that write to `place`. Raises HarnessError where there is no Slurm."""
    import submitit

    outside = (
        sys.executable if slurm.prefix else slurm.python or sys.executable
    )  # a leader needs srun: no container
    try:
        made = submitit.SlurmExecutor(
            folder=place.submitit.absolute(), python=f"exec {shlex.quote(outside)}"
        )
    except RuntimeError as error:
        raise HarnessError(f"Slurm: {one_line(error)}") from None
    made.update_parameters(
        job_name=name,
        setup=setup_lines(place, slurm.setup),
        use_srun=False,
        stderr_to_stdout=True,
        wckey=None,
        array_parallelism=slurm.array_parallelism,
        **resources(slurm, array),
        additional_parameters={
            "output": "/dev/null",  # the script itself writes to a file, whose name no pattern of Slurm can garble
            "signal": f"B:USR2@{slurm.warning}",
            "requeue": True,
            **({"mem": slurm.memory} if slurm.memory else {}),
            **{
                name: True if value is None else value
                for name, value in slurm.options.items()
                if name != "exclude"
            },
        },
    )
    return made


def resources(slurm: SlurmOptions, array: JobArray) -> dict[str, Any]:
    """What an array's jobs ask for, as submitit calls it; None is left to the cluster."""
    gpus: int | str | None = array.ranks_per_node * slurm.gpus_per_rank or None
    if gpus and slurm.gpu_type:
        gpus = f"{slurm.gpu_type}:{gpus}"
    return {
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "nodes": array.nodes,
        "ntasks_per_node": array.ranks_per_node,
        "cpus_per_task": slurm.cpus_per_rank,
        "gpus_per_node": gpus,
        "time": -(-slurm.time_limit_seconds // 60),
        "exclusive": slurm.exclusive or None,
    }


def setup_lines(place: SubmissionFolder, own: Sequence[str]) -> list[str]:
    """What the batch script does first: write to the job's log, and outlive a signal that comes before the leader."""
    job = '"${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"'
    return [
        f"exec >>{shlex.quote(str(place.path.absolute()))}/{job}.log 2>&1 || exit 1",  # bash would go on
        "trap '' USR2",
        "export SUBMITIT_PREEMPT_SIGNAL=URG",  # submitit takes a preempted short job for one that timed out
        *(
            [
                f"trap 'echo {SETUP}exit code $?: \"$BASH_COMMAND\"' ERR EXIT",
                *own,
                "trap - ERR EXIT",
            ]
            if own
            else []
        ),
    ]


def check_folder(profile: Profile, path: Path) -> None:
    """Raises BadInput for a folder that nodes don't see, or that submitit takes for a pattern (%j: a job's id)."""
    check_shared_folder(profile, path)
    if "%" in str(path.absolute()):
        raise BadInput(
            f"--results: found {str(path.absolute())!r}; allowed: for jobs, a path without %"
        )
