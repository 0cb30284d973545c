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
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.core.errors import BadInput, HarnessError, one_line
from harness.core.paths import SweepFolder, TrialFolder, write_atomically
from harness.core.ports import node_address
from harness.core.slurm_environment import own_job_id
from harness.core.text import counted
from harness.launch import srun
from harness.launch.attempts import last_saved_at
from harness.launch.interrupt import StopRequest
from harness.launch.runner import Runner, TrialListener
from harness.launch.srun import Srun, cancelled_by_user
from harness.launch.stack import ready_stacks
from harness.records.files import read_record_if_exists
from harness.records.record import Record
from harness.slurm import submission as submissions
from harness.slurm.submission import Submission
from harness.sweep.cell import Trial
from harness.training.progress import SIGNAL

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

    `arguments` are `lead`, or `revive` once the leader was killed or has crashed, the folder of the sweep,
    the id of the submission and the number of the array.
    """
    action, sweep_path, submission_id, array = arguments
    act = {"lead": lead, "revive": Job.requeue}[action]
    index = int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))
    try:
        folder = SweepFolder(Path(sweep_path))
        submission = submissions.read(submissions.folder_of(folder, submission_id))
        act(Job(sweep_folder=folder, submission=submission, array=int(array), index=index))
    except (JobIsOver, BadInput) as error:  # which will be the same when the job is back
        print(f"harness: {error}", flush=True)
        return DECIDED
    except Exception as error:  # whatever it is, the job is to come back
        if not isinstance(error, HarnessError):
            traceback.print_exc()
        print(f"harness: {error}", flush=True)
        return CRASHED
    return 0


@dataclass(frozen=True, kw_only=True)
class Job:
    """The job that this process runs in.

    One that finishes a trial, or saves what it has trained, may come back as often as it takes: only
    restarts since the last start in which that happened count.
    """

    sweep_folder: SweepFolder
    submission: Submission
    array: int
    index: int  # in the array
    # How often it was requeued, by its leader or by Slurm.
    restarts: int = field(default_factory=lambda: int(os.environ.get("SLURM_RESTART_COUNT", "0")))

    @property
    def folder(self) -> Path:
        """Return the folder of its submission."""
        return submissions.folder_of(self.sweep_folder, self.submission.id)

    @property
    def restarts_path(self) -> Path:
        """Return the file with how often it had been started again when it last got on."""
        return self.folder / f"{self.array}-{self.index}.restarts"

    def refuse_cancelled(self) -> None:
        """Raise JobIsOver if the user has cancelled it: once requeued, it would run all the same."""
        if (self.folder / submissions.CANCELLED).exists():
            raise JobIsOver("the sweep's jobs were cancelled")

    def fruitless_restarts(self) -> int:
        """Return how often it was started again since a trial has ended, or saved, in it."""
        fruitful = 0
        with suppress(FileNotFoundError, ValueError):
            fruitful = int(self.restarts_path.read_text(encoding="ascii"))
        return self.restarts - fruitful

    def note_progress(self) -> None:
        """Remember that a trial has ended, or saved, in this start of the job."""
        if self.fruitless_restarts():
            write_atomically(self.restarts_path, str(self.restarts))

    def refuse_restarts(self, allowed: int) -> None:
        """Raise JobIsOver if it was started again more often than is allowed without getting on."""
        fruitless = self.fruitless_restarts()
        if fruitless > allowed:
            raise JobIsOver(
                f"job {own_job_id()} was started again {counted(fruitless, 'time')} without finishing a"
                f" trial; slurm.requeues: {self.submission.profile.slurm.requeues}"
            )

    def requeue(self) -> None:
        """Have Slurm requeue this job, once its controller answers.

        The next leader finds out which trials are pending. Raises JobIsOver if it was requeued as often as
        the profile allows without getting on, HarnessError if Slurm refuses.
        """
        self.refuse_cancelled()
        self.refuse_restarts(self.submission.profile.slurm.requeues - 1)
        completed = srun.call(["scontrol", "requeue", own_job_id()], on_wait=log)
        if completed.returncode:
            refusal = one_line(completed.stderr)
            raise HarnessError(f"job {own_job_id()} can't be requeued: {refusal}")

    def trials(self) -> list[Trial]:
        """Return its trials, but for those that a later submission has.

        That was made while no job of this one was in the queue: sbatch may have failed, and Slurm have
        received the call all the same.
        """
        taken_over: set[str] = set()
        for other in submissions.read_all(self.sweep_folder):
            if other.created_at > self.submission.created_at:
                taken_over.update(other.trial_ids)
        trials = {trial.id: trial for trial in self.submission.sweep.trials()}
        trial_ids = self.submission.arrays[self.array].trial_ids[self.index]
        return [trials[trial_id] for trial_id in trial_ids if trial_id not in taken_over]

    def runner(self, listener: JobListener) -> Runner:
        """Return what runs trials, with ranks as steps of this job.

        Raises BadInput if the interface that the profile sets for gloo has no address on this node.
        """
        profile = self.submission.profile
        slurm = profile.slurm
        launcher = Srun(
            environment=profile.environment,
            ranks_per_node=self.submission.arrays[self.array].ranks_per_node,
            cpus_per_rank=slurm.cpus_per_rank,
            python=slurm.python or sys.executable,
            prefix=slurm.prefix,
            address=node_address(profile.environment.get("GLOO_SOCKET_IFNAME")),
        )
        return Runner(
            sweep=self.submission.sweep,
            profile=profile,
            folder=self.sweep_folder,
            launcher=launcher.start,
            listener=listener,
            since=self.submission.created_at,
            poll_seconds=POLL_SECONDS,
            resumes=0,  # an interrupted trial continues when its job is back, not in this one
            stop=listener.stop,
        )


def lead(job: Job) -> None:
    """Run the pending trials of this job, and requeue the job if it was interrupted.

    Raises JobIsOver, so that Slurm shows the job as failed, if trials stay undone and the job is
    not to be requeued, and BadInput for a stack that ranks can't run under.
    """
    job.refuse_cancelled()
    listener = JobListener()
    for number in (SIGNAL, signal.SIGTERM):
        signal.signal(number, listener.on_signal)
    trials = job.trials()
    runner = job.runner(listener)
    pending = pending_trials(runner, trials)
    log(
        f"job {own_job_id()} on {os.environ['SLURM_JOB_NODELIST']}:"
        f" pending: {len(pending)} of {counted(len(trials), 'trial')}"
    )
    stacks = ready_stacks(runner.sweep, [trial.cell for trial in pending])
    # Slurm itself starts a job again when a node dies.
    job.refuse_restarts(job.submission.profile.slurm.requeues)
    interruption = run_until_interrupted(job, replace(runner, stacks=stacks), pending)
    undone = pending_trials(runner, trials)
    if not undone:
        return
    job.refuse_cancelled()
    # It comes back after SIGUSR2, or the loss of its nodes. Not after SIGTERM alone, with which Slurm
    # cancels a job: one that it preempts without a warning, it requeues itself.
    is_to_come_back = SIGNAL in listener.signals
    if not listener.signals and interruption is not None:
        is_to_come_back = not cancelled_by_user(interruption)
    if not is_to_come_back:
        reason = f": {interruption}" if interruption else ""
        raise JobIsOver(f"left undone: {counted(len(undone), 'trial')}{reason}")
    job.requeue()


def run_until_interrupted(job: Job, runner: Runner, pending: Sequence[Trial]) -> str | None:
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
            runner.stop.note(interruption)
            if last_saved_at(runner.folder.trial_folder(record.trial.id)) >= record.started:
                job.note_progress()
        elif kind == "ControllerDown":
            # Wait until the controller answers, or this process is to stop.
            srun.call(
                ["scontrol", "show", "job", "--oneliner", own_job_id()],
                on_wait=log,
                is_wanted=lambda: runner.stop.reason() is None,
            )
        else:
            job.note_progress()
    return interruption


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
        self.stop = StopRequest()

    def on_signal(self, number: int, frame: object) -> None:
        """Remember a signal of Slurm's, for which the runner stops the running trials.

        SIGTERM comes twice: Slurm sends it to the leader too, and the shell passes it on.
        """
        if number not in self.signals:
            self.signals.add(number)
            # Slurm sends the same signal ahead of both.
            self.stop.note("time limit or preemption" if number == SIGNAL else "SIGTERM")
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
