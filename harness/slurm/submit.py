"""Submits a sweep: packs its pending trials into jobs and hands these to Slurm by submitit; cancels them.

submitit writes the batch script and calls sbatch. Of what it offers beyond that, nothing is used:
no pickles, no checkpointing, no srun around the command, no waiting for results. A job
needs nothing that is written after sbatch has returned, so that one whose submitter was killed at
that moment runs as any other. The batch script begins with the lines of `setup_lines` and ends with
those of `leader_lines`.
"""

from __future__ import annotations

import contextlib
import io
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.errors import BadInput, HarnessError, one_line
from harness.core.files import make_private_folder, private_umask
from harness.core.import_path import import_variables, module_command
from harness.core.paths import SweepFolder
from harness.core.slurm_environment import ignored_variables, submission_environment
from harness.core.text import listed
from harness.launch import srun
from harness.launch.stack import ready_stacks
from harness.launch.sweep import plan, refuse_changed_profile
from harness.records.differences import profile_change, run_settings
from harness.records.store import lock, write_spec
from harness.slurm import queue as queues
from harness.slurm import submission as submissions
from harness.slurm.leader import DECIDED
from harness.slurm.submission import JobArray, Submission
from harness.sweep.cell import Trial
from harness.sweep.cluster import Profile, SlurmOptions
from harness.sweep.sweep import Sweep

if TYPE_CHECKING:
    from submitit import SlurmExecutor

# Jobs of one array: Slurm's MaxArraySize is 1001 unless an administrator raised it.
MAX_ARRAY_JOBS = 1000
# The end of a batch script. The leader begins with SIGUSR2 ignored, until it handles it. `wait`
# returns early when a signal is passed on, and is called again until the leader has ended. After
# SIGTERM, Slurm is cancelling the job, or requeues it.
# A signal may come when a process has just ended, or has been ended by Slurm with the job, of which
# `kill` would say that there is none.
# The last line is no `exec`, after which a trap that `setup` has set for EXIT would not run.
# `setup` may have set -e, with which the `wait` that a signal cuts short would end the script, or -u.
LEADER_LINES = """\
set +eu
(exec {lead}) &
leader=$!
trap 'kill -USR2 $leader 2>/dev/null' USR2
trap 'is_ended_by_slurm=1; kill -TERM $leader 2>/dev/null' TERM
while kill -0 $leader 2>/dev/null; do wait $leader; done
wait $leader
code=$?
[ $code -eq 0 ] || [ $code -eq {decided} ] || [ $is_ended_by_slurm ] && exit $code
echo "the leader ended with code $code; Slurm is asked to requeue the job"
{revive}"""


@dataclass(frozen=True, kw_only=True)
class PreparedSubmission:
    """A submission, and what the user should know about it."""

    submission: Submission
    finished_trials: int  # of the sweep, that will not run again
    live_trials: int  # of the sweep, that jobs of earlier submissions have and may still run
    remarks: Sequence[str]  # a sentence each


def submit(sweep: Sweep, profile: Profile, sweep_folder: SweepFolder) -> PreparedSubmission:
    """Submit the trials that are pending and that no job has, and return what was submitted.

    Trials that failed run again. A controller that is away is waited for. There is no array if there
    was nothing to submit.

    Raises BadInput as `prepare` does and if another process is working on this sweep, HarnessError if
    Slurm refuses, or does not answer for too long.
    """
    with lock(sweep_folder):
        prepared = prepare(sweep, profile, sweep_folder, patience=srun.PATIENCE_SECONDS)
        submission = prepared.submission
        # Also where nothing is left to submit: `show`, the report and MLflow follow what was named last.
        write_spec(sweep, sweep_folder)
        if not submission.arrays:
            return prepared
        # Written before the first sbatch: jobs are recognized by their names, whatever becomes of this
        # process, and the next submission takes over what never got into the queue.
        submissions.write(sweep_folder, submission)
        for number in range(len(submission.arrays)):
            executor = array_executor(sweep_folder, submission, number)
            try:
                call_sbatch(executor, leader_lines(sweep_folder, submission, number))
            except HarnessError as error:
                if number == 0 and not srun.is_silent(str(error)):
                    shutil.rmtree(submissions.folder_of(sweep_folder, submission.id))
                raise HarnessError(
                    f"{error}; {number} of {len(submission.arrays)} arrays were submitted;"
                    " the same command submits the others"
                ) from None
    return prepared


def prepare(
    sweep: Sweep,
    profile: Profile,
    sweep_folder: SweepFolder,
    *,
    patience: float = 0.0,
) -> PreparedSubmission:
    """Decide which trials to submit and pack them into jobs, without starting or writing anything.

    A controller that is away is waited for `patience` seconds.

    Raises SlurmDown if there are earlier submissions and Slurm does not say whether they still have
    jobs: a trial must not run in two jobs at once. Raises BadInput for a stack that ranks can't run
    under, for a folder that submitit can't have, and while jobs have trials of the sweep that can't be
    added to.
    """
    path = str(sweep_folder.path.absolute())
    if "%" in path:  # submitit expands it: `%j` becomes a job's id
        raise BadInput(f"--results: found {path!r}; allowed: for jobs, a path without %")
    todo = plan(sweep, sweep_folder, "failed")
    refuse_changed_profile(todo, sweep, profile, sweep_folder)
    live_ids = _live_trials(sweep, profile, sweep_folder, patience)
    new_trials = {trial.id: trial for trial in todo.pending if trial.id not in live_ids}
    _check_stacks(sweep, new_trials.values())
    # A block whose other trials are done keeps what is pending of it together.
    blocks = []
    for block in sweep.blocks():
        blocks.append([trial for trial in block if trial.id in new_trials])
    remarks = list(todo.unreadable)
    ignored = ignored_variables()
    if ignored:
        remarks.append(f"the profile alone says what jobs ask for; ignored: {', '.join(ignored)}")
    arrays = pack(blocks, profile.slurm)
    return PreparedSubmission(
        submission=Submission(sweep=sweep.whole(), profile=profile, arrays=arrays),
        finished_trials=len(todo.finished),
        live_trials=len(todo.pending) - len(new_trials),
        remarks=remarks,
    )


def pack(blocks: Sequence[Sequence[Trial]], slurm: SlurmOptions) -> list[JobArray]:
    """Deal blocks round to as many jobs as may run at a time, each on the nodes that it needs.

    Trials of a block are compared with each other, so it stays in one job. A job that reaches its time limit
    comes back and goes on, so no duration is estimated. Blocks that need other numbers of nodes or ranks
    have other jobs, which are in an array of their own. Nodes are filled: five ranks on nodes of four are
    two nodes with four ranks each, of which three stay idle. A block without trials is passed over.
    """
    blocks_by_shape: dict[tuple[int, int], list[Sequence[Trial]]] = {}
    for block in filter(None, blocks):
        ranks = max(trial.cell.axes.world_size for trial in block)
        nodes = -(-ranks // slurm.ranks_per_node)  # rounded up
        shape = nodes, min(ranks, slurm.ranks_per_node)
        blocks_by_shape.setdefault(shape, []).append(block)
    arrays = []
    for (nodes, ranks), blocks_of_shape in blocks_by_shape.items():
        jobs = min(slurm.array_parallelism, len(blocks_of_shape), MAX_ARRAY_JOBS)
        trial_ids = []
        for number in range(jobs):
            trials = chain.from_iterable(blocks_of_shape[number::jobs])
            trial_ids.append([trial.id for trial in trials])
        arrays.append(JobArray(nodes=nodes, ranks_per_node=ranks, trial_ids=trial_ids))
    return arrays


def _live_trials(
    sweep: Sweep, profile: Profile, sweep_folder: SweepFolder, patience: float
) -> set[str]:
    """Return the ids of the trials that jobs have which have not ended.

    A cancelled job runs no further trial, and no other job may run its trials before it has ended.
    Trials of two profiles would not compare. Raises BadInput where jobs of either kind have trials of the
    sweep.
    """
    trial_ids = {trial.id for trial in sweep.whole().trials()}
    current = run_settings(sweep, profile)
    live_ids: set[str] = set()
    for submission, live in queues.live_submissions(sweep_folder, patience):
        live_ids.update(live)
        job_ids = {live[trial_id].id for trial_id in trial_ids & live.keys()}
        change = profile_change(run_settings(submission.sweep, submission.profile), current)
        if job_ids and (submission.is_cancelled or change is not None):
            problem = f"have another profile: {change}"
            if submission.is_cancelled:
                problem = "were cancelled and have not ended yet"
            raise BadInput(
                f"{sweep_folder.path}: jobs {listed(sorted(job_ids))} in Slurm's queue {problem}; allowed:"
                f" once they have ended, or after harness cancel {shlex.quote(sweep.name)}"
            )
    return live_ids


def _check_stacks(sweep: Sweep, trials: Iterable[Trial]) -> None:
    """Raise BadInput for a stack that ranks can't run under, as far as this machine can tell.

    A container's command is often there on nodes only. Then the leader of each job checks its stacks.
    """
    cells = []
    for trial in trials:
        stack = trial.cell.stack
        if stack is not None and (not stack.prefix or shutil.which(stack.prefix[0])):
            cells.append(trial.cell)
    ready_stacks(sweep, cells)


def call_sbatch(executor: SlurmExecutor, command: str) -> None:
    """Submit a batch script that ends with a command.

    The script is private, as it may hold secrets of the profile, and the shell's variables for
    sbatch and srun have no effect.

    Raises HarnessError with sbatch's message.
    """
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    # submitit prints sbatch's message, which the error contains too.
    quiet = contextlib.redirect_stderr(io.StringIO())
    try:
        make_private_folder(executor.folder)
        with quiet, private_umask() as umask, submission_environment(umask):
            # Its public `submit` pickles a function into a file whose name holds the job's id, and
            # which is therefore missing if this process is killed while sbatch returns.
            executor._submit_command(command)
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        raise HarnessError(one_line(error)) from None


def batch_scripts(sweep_folder: SweepFolder, submission: Submission) -> list[str]:
    """Return the batch script that sbatch gets for each array, without calling it."""
    scripts = []
    for number in range(len(submission.arrays)):
        executor = array_executor(sweep_folder, submission, number)
        command = leader_lines(sweep_folder, submission, number)
        scripts.append(str(executor._make_submission_file_text(command, "")))
    return scripts


def leader_lines(sweep_folder: SweepFolder, submission: Submission, number: int) -> str:
    """Return the lines of the batch script that run the leader of a job of an array.

    The shell stays, because it is small: if the leader is killed, by whatever runs out of memory
    for example, the shell has Slurm requeue the job.
    """
    slurm = submission.profile.slurm
    python = slurm.python or sys.executable
    if slurm.prefix:
        python = sys.executable  # the leader calls srun, which a container does not have
    leader = module_command(python, "harness.slurm.leader")
    which_job = [str(sweep_folder.path.absolute()), submission.id, str(number)]
    return LEADER_LINES.format(
        lead=shlex.join([*leader, "lead", *which_job]),
        revive=shlex.join([*leader, "revive", *which_job]),
        decided=DECIDED,
    )


def array_executor(sweep_folder: SweepFolder, submission: Submission, number: int) -> SlurmExecutor:
    """Return submitit's executor for an array; raises HarnessError where there is no Slurm."""
    import submitit

    slurm = submission.profile.slurm
    array = submission.arrays[number]
    folder = submissions.folder_of(sweep_folder, submission.id).absolute()
    try:
        executor = submitit.SlurmExecutor(folder=folder / "submitit")
    except RuntimeError as error:
        raise HarnessError(f"Slurm: {one_line(error)}") from None
    # use_srun: submitit would run the leader as a step, whose tasks are all ranks of the job.
    # stderr_to_stdout, wckey: otherwise it adds directives that not every cluster accepts.
    executor.update_parameters(
        job_name=submission.job_name(number),
        setup=setup_lines(folder, number, slurm.setup),
        use_srun=False,
        stderr_to_stdout=True,
        wckey=None,
        array_parallelism=slurm.array_parallelism,
        additional_parameters=sbatch_options(slurm, array),
    )
    if len(array.trial_ids) > 1:
        executor.parameters["map_count"] = len(array.trial_ids)  # makes the script that of an array
    return executor


def sbatch_options(slurm: SlurmOptions, array: JobArray) -> dict[str, Any]:
    """Return what an array's jobs ask sbatch for, by its options with underscores."""
    options: dict[str, Any] = {
        "nodes": array.nodes,
        "ntasks_per_node": array.ranks_per_node,
        "cpus_per_task": slurm.cpus_per_rank,
        # The script redirects its output itself: in the name of Slurm's log, % begins a pattern.
        "output": "/dev/null",
        "signal": f"B:USR2@{slurm.warning}",  # B: to the batch script alone
        "requeue": True,
    }
    if slurm.gpus_per_rank:
        options["gpus_per_node"] = array.ranks_per_node * slurm.gpus_per_rank
    return {**options, **slurm.options}


def setup_lines(folder: Path, array: int, setup: Sequence[str]) -> list[str]:
    """Return the first lines of the batch script, which end with the profile's `setup`.

    They redirect the output to the job's log in the submission's folder, and ignore a signal that comes
    before the leader handles it.
    """
    log = f'{shlex.quote(str(folder))}/{array}-"${{SLURM_ARRAY_TASK_ID:-0}}".log'
    # Without `exit`, bash would go on.
    lines = [f"exec >>{log} 2>&1 || exit 1", "trap '' USR2"]
    for name, value in import_variables().items():
        lines.append(f"export {name}={shlex.quote(value)}")
    return [*lines, *setup]


def cancel(sweep_folder: SweepFolder) -> list[str]:
    """Cancel every job of the sweep that has not ended, with one call of scancel; return their ids.

    Trials that were running continue from where they were when the sweep is submitted again.

    Raises SlurmDown if Slurm does not answer, HarnessError with its message if it refuses.
    """
    with lock(sweep_folder):
        job_ids: dict[str, None] = {}  # in order, once for all trials of a job
        for submission, live in queues.live_submissions(sweep_folder):
            job_ids |= dict.fromkeys(job.id for job in live.values())
            # Written before the jobs end: a leader that saves its trial reads it, and does not
            # requeue its job.
            (submissions.folder_of(sweep_folder, submission.id) / submissions.CANCELLED).touch()
        if job_ids:
            completed = srun.run_client(["scancel", *job_ids])
            if completed.returncode:
                raise HarnessError(f"scancel: {one_line(completed.stderr)}")
    return list(job_ids)
