"""Submits a sweep: packs its pending trials into jobs and hands these to Slurm by submitit.

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
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.errors import BadInput, HarnessError, one_line
from harness.core.import_path import import_variables, module_command
from harness.core.paths import SweepFolder
from harness.core.private import make_private_folder, private_umask
from harness.core.slurm_environment import (
    ignored_variables,
    submission_environment,
    submission_variables,
)
from harness.launch import controller
from harness.launch.runner import next_attempt
from harness.launch.stack import ready_stacks
from harness.launch.sweep import Redo, plan, refuse_changed_profile
from harness.records.settings import profile_change, run_settings
from harness.records.store import lock, write_spec
from harness.slurm import queue as queues
from harness.slurm import submission as submissions
from harness.slurm.leader import DECIDED, SETUP_VARIABLE
from harness.slurm.packing import JobArray, pack
from harness.slurm.queue import QueuedJob
from harness.slurm.submission import Submission, SubmissionFolder
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from harness.spec.slurm import SlurmOptions
from harness.spec.sweep import Sweep

if TYPE_CHECKING:
    from submitit import SlurmExecutor

# Begins a line of the job's log which reports that a line of the profile's setup has failed.
SETUP_FAILED = "setup: "
# The end of a batch script. The leader begins with SIGUSR2 ignored, until it handles it. `wait`
# returns early when a signal is passed on, and is called again until the leader has ended. After
# SIGTERM, Slurm is cancelling the job, or requeues it.
# A signal may come when a process has just ended, or has been ended by Slurm with the job, of which
# `kill` would say that there is none.
# The last line is no `exec`, after which a trap that `setup` has set for EXIT would not run.
# `setup` may have set -e, with which the `wait` that a signal cuts short would end the script, or -u.
LEADER_LINES = """\
set +eu
export {setup_variable}=$SECONDS
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
    """A submission that was not handed to Slurm yet, and what the user should know about it."""

    submission: Submission
    finished_trials: int  # of the sweep, that will not run again
    live_trials: int  # of the sweep, that jobs of earlier submissions have and may still run
    remarks: Sequence[str]  # what the user should know, a sentence each

    @property
    def new_trials(self) -> int:
        """The number of trials that the submission's jobs will run."""
        return sum(len(job.trial_ids) for job in self.submission.jobs())


def submit(
    sweep: Sweep,
    profile: Profile,
    sweep_folder: SweepFolder,
    *,
    redo: Redo,
    on_prepared: Callable[[PreparedSubmission], None],
    on_wait: Callable[[str], None],
) -> Submission:
    """Submit the trials that are pending and that no job has.

    `redo` says which finished trials run again, and `on_prepared` is called before anything is handed
    to Slurm. A controller that is away is waited for, of which `on_wait` gets a line. Returns the
    submission, without an array if there was nothing to submit.

    Raises BadInput if another process is working on this sweep, HarnessError if Slurm refuses, or
    does not answer for too long.
    """
    with lock(sweep_folder):
        prepared = prepare(sweep, profile, sweep_folder, redo=redo, on_wait=on_wait)
        on_prepared(prepared)
        submission = prepared.submission
        # Also where nothing is left to submit: `show`, the report and MLflow follow what was named last.
        write_spec(sweep, sweep_folder)
        if not submission.arrays:
            return submission
        # Written before the first sbatch: jobs are recognized by their names, whatever becomes of this
        # process, and the next submission takes over what never got into the queue.
        submissions.write(sweep_folder, submission)
        for number in range(len(submission.arrays)):
            executor = array_executor(sweep_folder, submission, number)
            try:
                call_sbatch(executor, leader_lines(sweep_folder, submission, number))
            except HarnessError as error:
                if number == 0 and not controller.is_silent(str(error)):
                    shutil.rmtree(submissions.folder_of(sweep_folder, submission.id).path)
                raise HarnessError(
                    f"{error}; {number} of {len(submission.arrays)} arrays were submitted;"
                    " the same command submits the others"
                ) from None
    return submission


def check_stacks(sweep: Sweep, trials: Sequence[Trial]) -> None:
    """Raise BadInput for a stack that ranks can't run under, as far as this machine can tell.

    A container's command is often there on nodes only. Then the leader of each job checks its stacks.
    """
    cells = []
    for trial in trials:
        stack = trial.cell.stack
        if stack is not None and (not stack.prefix or shutil.which(stack.prefix[0])):
            cells.append(trial.cell)
    ready_stacks(sweep, cells)


def prepare(
    sweep: Sweep,
    profile: Profile,
    sweep_folder: SweepFolder,
    *,
    redo: Redo,
    on_wait: Callable[[str], None] | None = None,
) -> PreparedSubmission:
    """Decide which trials to submit and pack them into jobs, without starting or writing anything.

    With `on_wait`, a controller that is away is waited for.

    Raises SlurmDown if there are earlier submissions and Slurm does not say whether they still have
    jobs: a trial must not run in two jobs at once. Raises BadInput for a stack that ranks can't run
    under, while cancelled jobs are ending that have some of the trials, and while jobs have some that
    were submitted with another profile.
    """
    todo = plan(sweep, sweep_folder, redo)
    refuse_changed_profile(todo, sweep, profile, sweep_folder)
    earlier = submissions.read_all(sweep_folder)
    queue = queues.query_submitters(earlier, on_wait=on_wait)
    refuse_ending_jobs(sweep_folder, earlier, queue, todo.pending)
    live = queues.live_jobs(earlier, queue)
    trial_ids = {trial.id for trial in sweep.whole().trials()}
    uncancelled = [made for made in earlier if not made.is_cancelled]
    refuse_other_profile(sweep, profile, sweep_folder, uncancelled, queue, trial_ids)
    new_ids = [trial.id for trial in todo.pending if trial.id not in live]
    is_new = set(new_ids)
    check_stacks(sweep, [trial for trial in todo.pending if trial.id in is_new])
    # A block whose other trials are done keeps what is pending of it together.
    blocks = []
    for block in sweep.blocks():
        trials = [trial for trial in block if trial.id in is_new]
        if trials:
            blocks.append(trials)
    arrays = pack(blocks, profile.slurm)
    # Attempts are counted on from those of earlier submissions and of local runs.
    first_attempts = {}
    for trial_id in new_ids:
        first_attempts[trial_id] = next_attempt(sweep_folder.trial_folder(trial_id))
    live_trials = [trial for trial in todo.pending if trial.id in live]
    remarks = remark_on_outdated(sweep, queues.live_jobs(uncancelled, queue), trial_ids)
    ignored = ignored_variables()
    if ignored:
        names = ", ".join(ignored)
        remarks.append(f"the profile alone says what jobs ask for; ignored: {names}")
    return PreparedSubmission(
        submission=submissions.new(sweep.whole(), profile, arrays, first_attempts),
        finished_trials=len(todo.finished),
        live_trials=len(live_trials),
        remarks=[*remarks, *todo.unreadable],
    )


def refuse_ending_jobs(
    sweep_folder: SweepFolder,
    earlier: Sequence[Submission],
    queue: Mapping[str, QueuedJob],
    pending: Sequence[Trial],
) -> None:
    """Refuse to submit while cancelled jobs that have pending trials are still in the queue.

    Such a job runs no further trial, and no other job may run its trials before it has ended. Raises
    BadInput.
    """
    cancelled = [submission for submission in earlier if submission.is_cancelled]
    ending = queues.live_jobs(cancelled, queue)
    job_ids = {ending[trial.id].id for trial in pending if trial.id in ending}
    if job_ids:
        listed = one_line(", ".join(sorted(job_ids)), 60)
        raise BadInput(
            f"{sweep_folder.path}: cancelled jobs {listed} are still in Slurm's queue;"
            " submit again once they have ended"
        )


def refuse_other_profile(
    sweep: Sweep,
    profile: Profile,
    sweep_folder: SweepFolder,
    earlier: Sequence[Submission],
    queue: Mapping[str, QueuedJob],
    trial_ids: Collection[str],
) -> None:
    """Refuse to add trials to others that jobs have with another profile: they would not compare.

    `trial_ids` are those of the sweep. Raises BadInput.
    """
    current = run_settings(sweep, profile)
    for submission in earlier:
        live = queues.live_jobs([submission], queue)
        if not any(trial_id in trial_ids for trial_id in live):
            continue
        change = profile_change(run_settings(submission.sweep, submission.profile), current)
        if change is not None:
            raise BadInput(
                f"{sweep_folder.path}: jobs in Slurm's queue have trials of it with another profile:"
                f" {change}; allowed: that profile, another name for the sweep or another --results,"
                f" or harness cancel {shlex.quote(sweep.name)} first"
            )


def remark_on_outdated(
    sweep: Sweep, live: Mapping[str, QueuedJob], trial_ids: Collection[str]
) -> list[str]:
    """Return a remark on the jobs that have trials of an earlier version of the sweep, if any has.

    `live` are the jobs that have not ended, by trial id; `trial_ids` are those of the sweep.
    """
    outdated = {job.id for trial_id, job in live.items() if trial_id not in trial_ids}
    if not outdated:
        return []
    job_ids = one_line(", ".join(sorted(outdated)), 60)
    return [
        f"jobs in Slurm's queue with trials that the sweep no longer has: {len(outdated)} ({job_ids});"
        f" harness cancel {shlex.quote(sweep.name)} cancels all jobs of the sweep"
    ]


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


def batch_script(sweep_folder: SweepFolder, submission: Submission, number: int) -> str:
    """Return the batch script that sbatch gets for an array, without calling it."""
    executor = array_executor(sweep_folder, submission, number)
    command = leader_lines(sweep_folder, submission, number)
    return str(executor._make_submission_file_text(command, ""))


def refuse_impossible(script: str) -> None:
    """Refuse a batch script that sbatch would refuse, such as one with an unknown account.

    Nothing is submitted. Where no controller answers, nothing is known either.

    Raises BadInput with Slurm's message.
    """
    try:
        completed = subprocess.run(
            ["sbatch", "--test-only"],
            input=script,
            env=submission_variables(),
            capture_output=True,
            text=True,
            check=False,
            timeout=controller.CALL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return
    message = one_line(completed.stderr)
    if completed.returncode and not controller.is_silent(message):
        raise BadInput(f"--cluster: sbatch refuses what the profile asks for: {message}")


def leader_lines(sweep_folder: SweepFolder, submission: Submission, number: int) -> str:
    """Return the lines of the batch script that run the leader of a job of an array.

    The shell stays, because it is small: if the leader is killed, by whatever runs out of memory
    for example, the shell has Slurm requeue the job.
    """
    leader = module_command(leader_python(submission.profile.slurm), "harness.slurm.leader")
    which_job = [str(sweep_folder.path.absolute()), submission.id, str(number)]
    return LEADER_LINES.format(
        lead=shlex.join([*leader, "lead", *which_job]),
        revive=shlex.join([*leader, "revive", *which_job]),
        decided=DECIDED,
        setup_variable=SETUP_VARIABLE,
    )


def leader_python(slurm: SlurmOptions) -> str:
    """Return the interpreter that runs in the batch script."""
    if slurm.prefix:
        return sys.executable  # the leader calls srun, which a container does not have
    return slurm.python or sys.executable


def array_executor(sweep_folder: SweepFolder, submission: Submission, number: int) -> SlurmExecutor:
    """Return submitit's executor for an array.

    Raises HarnessError where there is no Slurm.
    """
    slurm = submission.profile.slurm
    executor = job_executor(
        submissions.folder_of(sweep_folder, submission.id),
        slurm,
        submission.arrays[number],
        submission.job_name(number),
        number,
    )
    job_count = len(submission.arrays[number].trial_ids)
    if job_count > 1:
        executor.parameters["map_count"] = job_count  # makes the script that of an array
    return executor


def job_executor(
    submission_folder: SubmissionFolder,
    slurm: SlurmOptions,
    array: JobArray,
    job_name: str,
    number: int,
) -> SlurmExecutor:
    """Return submitit's executor for the jobs of the array with this number, which write to a folder.

    Raises HarnessError where there is no Slurm.
    """
    import submitit

    try:
        executor = submitit.SlurmExecutor(folder=submission_folder.submitit.absolute())
    except RuntimeError as error:
        raise HarnessError(f"Slurm: {one_line(error)}") from None
    # use_srun: submitit would run the leader as a step, whose tasks are all ranks of the job.
    # stderr_to_stdout, wckey: otherwise it adds directives that not every cluster accepts.
    executor.update_parameters(
        job_name=job_name,
        setup=setup_lines(submission_folder, number, slurm.setup),
        use_srun=False,
        stderr_to_stdout=True,
        wckey=None,
        array_parallelism=slurm.array_parallelism,
        additional_parameters=sbatch_options(slurm, array),
    )
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


def setup_lines(submission_folder: SubmissionFolder, array: int, setup: Sequence[str]) -> list[str]:
    """Return the first lines of the batch script, which end with the profile's `setup`.

    They redirect the output to the job's log, and ignore a signal that comes before the leader
    handles it. A line of `setup` that fails is reported in the log; as in any batch script, the
    next line runs all the same. A trap for EXIT that `setup` sets stays.
    """
    folder = shlex.quote(str(submission_folder.path.absolute()))
    lines = [
        # Without `exit`, bash would go on.
        f'exec >>{folder}/{array}-"${{SLURM_ARRAY_TASK_ID:-0}}".log 2>&1 || exit 1',
        "trap '' USR2",
    ]
    for name, value in import_variables().items():
        lines.append(f"export {name}={shlex.quote(value)}")
    if setup:
        report = f'echo {SETUP_FAILED}exit code $?: "$BASH_COMMAND"'
        reset = '[ "$(trap -p EXIT)" != "$harness_trap" ] || trap - EXIT'
        lines += [
            f"trap '{report}' ERR EXIT",
            "harness_trap=$(trap -p EXIT)",
            *setup,
            "trap - ERR",
            reset,
        ]
    return lines


def check_folder(path: Path) -> None:
    """Refuse a folder whose name submitit would expand: `%j` becomes a job's id; raises BadInput."""
    absolute = str(path.absolute())
    if "%" in absolute:
        raise BadInput(f"--results: found {absolute!r}; allowed: for jobs, a path without %")
