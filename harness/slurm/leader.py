"""The leader of a job: it runs once, on the job's first node, and runs the trials as Slurm steps.

The job's batch script runs `python -m harness.slurm.leader lead SWEEP_FOLDER SUBMISSION ARRAY`. The
life of a job:

- The leader runs the trials that are pending, one after the other. Each leaves its record on the
  shared folder.
- Slurm sends SIGUSR2 ahead of the time limit and of a preemption. It sends it to the batch script
  alone, because between two trials there is no step that could receive it. The script's shell
  passes it on to the leader, and the leader to the running trials, which save and stop.
- The leader requeues the job, and continues where it stopped when Slurm starts the job again.
- If a node dies, Slurm kills and requeues the job, and the next start finds the attempt without a
  record.
- If the leader itself is killed, the script's shell runs `... leader revive ...` instead, which has
  Slurm requeue the job.
- While Slurm's controller does not answer, the leader waits for it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.core.errors import BadInput, HarnessError, one_line
from harness.core.paths import SweepFolder, TrialFolder, write_atomically
from harness.core.ports import free_port, node_address
from harness.core.slurm_environment import own_job_id
from harness.core.text import counted
from harness.hardware import machine
from harness.launch import controller
from harness.launch.runner import Runner, StopRequest, TrialListener
from harness.launch.srun import Srun, cancelled_by_user
from harness.launch.stack import ReadyStack, ready_stacks
from harness.records.files import read_record_if_exists
from harness.records.record import Record
from harness.slurm import submission as submissions
from harness.slurm.packing import JobArray
from harness.slurm.submission import Submission
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from harness.spec.slurm import SlurmOptions
from harness.training.interruption import SIGNAL

ALLOCATION_LOST = {"NodeFailure", "NotStarted"}  # failures after which this job can run no trial
POLL_SECONDS = 0.5  # between looks at a running trial; its files are on a shared file system
# The exit code of a leader that has ended as it meant to, though trials are left. After any other but
# 0, such as 137 of one that was killed or 1 of one that could not be imported, the batch script has
# the job requeued.
DECIDED = 3
CRASHED = 70  # EX_SOFTWARE in sysexits.h


class JobIsOver(HarnessError):
    """The job leaves trials undone, and must not come back for them."""


def main(arguments: Sequence[str]) -> int:
    """Lead the job that this process runs in, or have it requeued, and return the exit code.

    `arguments` are `lead` or `revive`, the folder of the sweep, the id of the submission and the
    number of the array.
    """
    action, sweep_path, submission_id, array = arguments
    act = {"lead": lead, "revive": revive}[action]
    index = int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))
    try:
        act(sweep_path, submission_id, int(array), index)
    except JobIsOver as error:
        print(f"harness: {error}", flush=True)
        return DECIDED
    except Exception as error:  # whatever it is, the job is to come back
        if not isinstance(error, HarnessError):
            traceback.print_exc()
        print(f"harness: {error}", flush=True)
        return CRASHED
    return 0


def lead(sweep_path: str, submission_id: str, array: int, index: int) -> None:
    """Run the pending trials of this job, and requeue the job if it was interrupted.

    `sweep_path` is the folder of the sweep; `array` and `index` say which of the submission's jobs
    this is.

    Raises JobIsOver, so that Slurm shows the job as failed, if trials stay undone and the job is
    not to be requeued.
    """
    sweep_folder = SweepFolder(Path(sweep_path))
    submission_folder = submissions.folder_of(sweep_folder, submission_id)
    submission = submissions.read(submission_folder)
    slurm = submission.profile.slurm
    job_array = submission.arrays[array]
    refuse_cancelled(submission_folder)

    listener = JobListener()
    for number in (SIGNAL, signal.SIGTERM):
        signal.signal(number, listener.on_signal)
    stop = StopRequest(listener.stop_reason)
    trials_by_id = {trial.id: trial for trial in submission.sweep.trials()}
    taken_over = taken_over_trials(sweep_folder, submission)
    job_trials = []
    for trial_id in job_array.trial_ids[index]:
        if trial_id not in taken_over:
            job_trials.append(trials_by_id[trial_id])
    runner = runner_of(sweep_folder, submission, job_array, listener, stop)
    pending = pending_trials(runner, job_trials)
    log(
        f"job {own_job_id()} on {os.environ['SLURM_JOB_NODELIST']}:"
        f" pending: {len(pending)} of {counted(len(job_trials), 'trial')}"
    )
    runner = replace(runner, stacks=stacks_of(runner, pending))
    restarts = Restarts(submission_folder / f"{array}-{index}.restarts")
    refuse_too_many_restarts(slurm, restarts)
    interruption = _run_until_interrupted(runner, pending, restarts, stop)
    undone = pending_trials(runner, job_trials)
    if not undone:
        return
    refuse_cancelled(submission_folder)  # it may be by now
    to_be_requeued = _was_interrupted_by_slurm(listener.signals, interruption)
    if to_be_requeued:
        requeue(slurm, restarts)
    if not to_be_requeued:
        reason = f": {interruption}" if interruption else ""
        raise JobIsOver(f"left undone: {counted(len(undone), 'trial')}{reason}")


def revive(sweep_path: str, submission_id: str, array: int, index: int) -> None:
    """Have the job requeued, because its leader was killed or has crashed.

    The next leader finds out which trials are pending. Raises JobIsOver if the job was
    cancelled, or was requeued too often.
    """
    submission_folder = submissions.folder_of(SweepFolder(Path(sweep_path)), submission_id)
    submission = submissions.read(submission_folder)
    refuse_cancelled(submission_folder)
    restarts = Restarts(submission_folder / f"{array}-{index}.restarts")
    requeue(submission.profile.slurm, restarts)


@dataclass(frozen=True)
class Restarts:
    """How often a job was started again without getting anywhere.

    A job that finishes a trial, or saves what it has trained, may come back as often as it takes: only
    restarts since the last start in which that happened count. The file holds how often the job had been
    started again by then; it is written once in each start.
    """

    path: Path

    def fruitless(self) -> int:
        """Return how often the job was started again since a trial has ended, or saved, in it."""
        try:
            fruitful = int(self.path.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            fruitful = 0
        return restart_count() - fruitful

    def note_progress(self) -> None:
        """Remember that a trial has ended, or saved, in this start of the job."""
        if self.fruitless():
            write_atomically(self.path, str(restart_count()))


def _run_until_interrupted(
    runner: Runner, pending: Sequence[Trial], restarts: Restarts, stop: StopRequest
) -> str | None:
    """Run the trials until one of them ends so that this job can't run another.

    The other trials save their state and stop. Returns the failure of the first such trial, None if
    every trial has run. A trial that failed by itself does not stop the others. One whose step could
    not be created because Slurm's controller was away runs again, once the controller answers.
    """
    interruption: str | None = None
    for record in runner.run(pending):
        kind = record.failure.kind if record.failure else None
        if kind in ALLOCATION_LOST or record.status == "interrupted":
            interruption = interruption or str(record.failure)
            stop.note(interruption)
            if _has_saved(runner.folder.trial_folder(record.trial.id), record.started):
                restarts.note_progress()
        elif kind == "ControllerDown":
            # Wait until the controller answers, or this process is to stop.
            controller.call(
                ["scontrol", "show", "job", "--oneliner", own_job_id()],
                on_wait=log,
                is_wanted=lambda: stop.reason() is None,
            )
        else:
            restarts.note_progress()
    return interruption


def _has_saved(folder: TrialFolder, since: float) -> bool:
    """Return whether a trial has saved its state since a moment, in seconds since the epoch."""
    paths = folder.resume_checkpoints.glob("step-*")
    return any(path.stat().st_mtime >= since for path in paths)


def _was_interrupted_by_slurm(signals: set[int], interruption: str | None) -> bool:
    """Return whether the job should continue later: after SIGUSR2, or the loss of its nodes.

    Not after SIGTERM alone, with which Slurm cancels a job: one that it preempts without a warning, it
    requeues itself. Nor if the message says that a user has cancelled the step.
    """
    if signals:
        return SIGNAL in signals
    return interruption is not None and not cancelled_by_user(interruption)


def refuse_cancelled(folder: Path) -> None:
    """Stop if the user has cancelled the submission: once requeued, its job would run all the same.

    Raises JobIsOver.
    """
    if (folder / submissions.CANCELLED).exists():
        raise JobIsOver("the sweep's jobs were cancelled")


def taken_over_trials(sweep_folder: SweepFolder, submission: Submission) -> set[str]:
    """Return the ids of the trials that a later submission has.

    It was made while no job of this one was in the queue: sbatch may have failed, and Slurm have received
    the call all the same.
    """
    taken_over: set[str] = set()
    for other in submissions.read_all(sweep_folder):
        if other.created_at > submission.created_at:
            taken_over.update(other.first_attempts)
    return taken_over


def refuse_too_many_restarts(slurm: SlurmOptions, restarts: Restarts) -> None:
    """Stop a job that Slurm has started again too often, as it does when a node dies.

    Raises JobIsOver.
    """
    fruitless = restarts.fruitless()
    if fruitless > slurm.requeues:
        raise JobIsOver(
            f"job {own_job_id()} was started again {counted(fruitless, 'time')} without finishing a trial;"
            f" slurm.requeues: {slurm.requeues}"
        )


def restart_count() -> int:
    """Return how often this job was requeued, by its leader or by Slurm."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def runner_of(
    sweep_folder: SweepFolder,
    submission: Submission,
    job_array: JobArray,
    listener: JobListener,
    stop: StopRequest,
) -> Runner:
    """Return the runner of this job's trials; raises JobIsOver as `launcher_of` does."""
    return Runner(
        sweep=submission.sweep,
        profile=submission.profile,
        folder=sweep_folder,
        launcher=launcher_of(submission.profile, job_array.ranks_per_node),
        listener=listener,
        peaks=machine.read_all(sweep_folder.results.peaks),
        since=submission.created_at,
        poll_seconds=POLL_SECONDS,
        resumes=0,  # an interrupted trial continues when its job is back, not in this one
        stop=stop,
    )


def stacks_of(runner: Runner, pending: Sequence[Trial]) -> dict[str, ReadyStack]:
    """Return the stacks of the pending trials, by name.

    Raises JobIsOver for one that ranks can't run under: it will not be another one when the job is
    back.
    """
    cells = [trial.cell for trial in pending]
    try:
        return ready_stacks(runner.sweep, cells)
    except BadInput as error:
        raise JobIsOver(str(error)) from None


def launcher_of(profile: Profile, ranks_per_node: int) -> Srun:
    """Return the launcher that runs ranks as steps of this job.

    Raises JobIsOver if the interface that the profile sets for gloo has no address on this node.
    """
    slurm = profile.slurm
    try:
        address = node_address(profile.environment.get("GLOO_SOCKET_IFNAME"))
    except BadInput as error:
        raise JobIsOver(str(error)) from None
    return Srun(
        environment=profile.environment,
        ranks_per_node=ranks_per_node,
        cpus_per_rank=slurm.cpus_per_rank,
        python=slurm.python or sys.executable,
        prefix=slurm.prefix,
        address=address,
        free_port=free_port,
    )


def pending_trials(runner: Runner, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that have to run.

    These are trials without a record of this submission, those that were interrupted, and those
    that run again because they were invalid, or were lost through no fault of their own. One whose
    record can't be read is left out: the record may be of another version of the harness.
    """
    pending = []
    for trial in trials:
        try:
            record = read_record_if_exists(runner.folder.trial_folder(trial.id).record_path)
        except BadInput as error:
            log(f"{trial.id} is left out: {error}")
            continue
        if (
            record is None
            or record.started < runner.since
            or record.status == "interrupted"
            or runner.runs_again(record)
        ):
            pending.append(trial)
    return pending


def log(text: str) -> None:
    """Print a line with the time, to the job's log, where the batch script's output goes."""
    print(time.strftime("%Y-%m-%d %H:%M:%S"), text, flush=True)


class JobListener(TrialListener):
    """Writes what happens to the job's log, and remembers the signals that Slurm has sent."""

    def __init__(self) -> None:
        self.signals: set[int] = set()

    def stop_reason(self) -> str | None:
        """Return why running trials have to stop, None as long as they may go on."""
        if SIGNAL in self.signals:
            return "time limit or preemption"  # Slurm sends the same signal ahead of both
        return "SIGTERM" if self.signals else None

    def on_signal(self, number: int, frame: object) -> None:
        """Remember a signal of Slurm's. The runner asks for `stop_reason` and stops the running
        trials.

        SIGTERM comes twice: Slurm sends it to the leader too, and the shell passes it on.
        """
        if number not in self.signals:
            self.signals.add(number)
            log(f"{signal.Signals(number).name}: running trials are to save and stop")

    def on_trial_start(self, trial: Trial) -> None:
        """Log which trial starts."""
        log(f"{trial.id} starts: {trial.cell.label}")

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None:
        """Log how the trial ended."""
        reason = record.failure or "; ".join(record.violations)
        suffix = f": {one_line(reason)}" if reason else ""
        log(f"{record.trial.id} {record.status}{suffix}")

    def on_message(self, text: str) -> None:
        """Log what the runner has to say."""
        log(text)


def requeue(slurm: SlurmOptions, restarts: Restarts) -> None:
    """Have Slurm requeue this job, once its controller answers.

    Raises JobIsOver if it was requeued as often as the profile allows without finishing a trial,
    HarnessError if Slurm refuses.
    """
    fruitless = restarts.fruitless()
    if fruitless >= slurm.requeues:
        raise JobIsOver(
            f"job {own_job_id()} was interrupted again after {counted(fruitless, 'requeue')} without finishing"
            f" a trial; slurm.requeues: {slurm.requeues}"
        )
    completed = controller.call(["scontrol", "requeue", own_job_id()], on_wait=log)
    if completed.returncode:
        raise HarnessError(f"job {own_job_id()} can't be requeued: {one_line(completed.stderr)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
