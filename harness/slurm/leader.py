"""The leader of a job: it runs once, on the job's first node, and runs the trials as Slurm steps.

submitit calls `lead` in the job and plays no further part. The life of a job:

- The leader records attempts that an earlier start of the job could not record, and runs the trials
  that are pending, one after the other. Each leaves its record on the shared folder.
- Slurm sends SIGUSR2 ahead of the time limit and of a preemption. It sends it to the batch script
  alone, whose place the leader has taken: between two trials there is no step that could receive
  it. The leader passes the signal on to the running trial, which saves and stops.
- The leader requeues the job, and continues where it stopped when Slurm starts the job again.
- If a node dies, Slurm kills and requeues the job by itself. The leader has a moment to exclude
  that node, or else the next start finds the attempt without a record.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core.errors import HarnessError, one_line
from harness.core.paths import SweepFolder, TrialFolder, write_atomically
from harness.core.ports import free_port, node_address
from harness.hardware import machine
from harness.launch.runner import Runner
from harness.launch.srun import Srun, cancelled_by_user
from harness.records.record import Record, read_record_if_exists
from harness.slurm import submission as submissions
from harness.slurm.submission import Submission, SubmissionFolder
from harness.spec import partitions
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from harness.spec.slurm import SlurmOptions
from harness.training.interruption import SIGNAL

ALLOCATION_LOST = {"NodeFailure", "NotStarted"}  # failures after which this job can run no trial
EARLY_SECONDS = 60.0  # that Slurm may send the signal before it is due: man sbatch, --signal
POLL_SECONDS = 0.5  # between looks at a running trial; its files lie on a shared file system
RETRIES = 2  # of a trial that was lost through no fault of its own


def lead(sweep_path: str, submission_id: str, array: int, index: int) -> None:
    """Run the pending trials of this job, and requeue the job if it was interrupted.

    `sweep_path` is the folder of the sweep; `array` and `index` say which of the submission's jobs
    this is. submitit has pickled the arguments when the job was submitted.

    Raises HarnessError, so that Slurm shows the job as failed, if trials stay undone and the job is
    not requeued.
    """
    sweep_folder = SweepFolder(Path(sweep_path))
    submission_folder = submissions.folder_of(sweep_folder, submission_id)
    submission = submissions.read(submission_folder.file)
    slurm = submission.profile.slurm
    job_array = submission.arrays[array]
    refuse_cancelled(submission)

    listener = JobListener(signal_due=time.time() + slurm.time_limit_seconds - slurm.warning)
    for number in (SIGNAL, signal.SIGTERM):
        signal.signal(number, listener.on_signal)
    runner = runner_of(sweep_folder, submission, job_array.ranks_per_node, listener)
    trials_by_id = {trial.id: trial for trial in submission.sweep.trials()}
    job_trials = [trials_by_id[trial_id] for trial_id in job_array.trial_ids[index]]
    pending = pending_trials(runner, job_trials)
    listener.log(
        f"job {_job_id()} on {os.environ['SLURM_JOB_NODELIST']}:"
        f" {len(pending)} of {len(job_trials)} trials are pending"
    )
    record_lost_attempts(runner, pending, submission_folder)
    refuse_too_many_restarts(slurm)

    interruption = _run_until_interrupted(runner, pending)
    undone = pending_trials(runner, job_trials)
    if not undone:
        return
    refuse_cancelled(submissions.read(submission_folder.file))  # it may have been meanwhile
    to_be_requeued = _was_interrupted_by_slurm(listener.signals, interruption)
    if to_be_requeued:
        requeue(slurm)
    # Slurm requeues a job by itself if a node of it dies: bad nodes are excluded in any case.
    _exclude_bad_nodes(runner, undone, submission, job_array.nodes)
    if not to_be_requeued:
        reason = f": {interruption}" if interruption else ""
        raise HarnessError(f"{len(undone)} trials are left undone{reason}")


def _run_until_interrupted(runner: Runner, pending: Sequence[Trial]) -> str | None:
    """Run the trials until one of them ends so that this job can't run another.

    Returns the failure of that trial, None if every trial has run. A trial that failed for a reason
    of its own does not stop the others.
    """
    for record in runner.run(pending):
        lost = record.failure is not None and record.failure.kind in ALLOCATION_LOST
        if lost or record.status == "interrupted":
            return str(record.failure)
    return None


def _was_interrupted_by_slurm(signals: set[int], interruption: str | None) -> bool:
    """Return whether the job should continue later: after SIGUSR2, or the loss of its nodes.

    A job that got SIGTERM alone was cancelled or has reached its limit without a warning. If the
    message says that a user has cancelled the step, the job is not wanted any more either.
    """
    if SIGNAL in signals:
        return True
    if signals or interruption is None:
        return False
    return not cancelled_by_user(interruption)


def _exclude_bad_nodes(
    runner: Runner, undone: Sequence[Trial], submission: Submission, nodes: int
) -> None:
    """Have Slurm restart this job without the nodes with which its undone trials were lost.

    `nodes` is how many nodes the job takes.
    """
    bad = bad_nodes(runner, undone)
    if bad:
        excluded = sorted({*submission.excluded_nodes, *bad})
        exclude_nodes(excluded, replace(submission.profile.slurm, nodes=nodes))


def refuse_cancelled(submission: Submission) -> None:
    """Stop if the user has cancelled the submission: once requeued, its job would run all the same.

    Raises HarnessError.
    """
    if submission.cancelled_at is not None:
        raise HarnessError("the sweep's jobs were cancelled")


def refuse_too_many_restarts(slurm: SlurmOptions) -> None:
    """Stop a job that Slurm has started again too often, as it does by itself when a node dies.

    Raises HarnessError.
    """
    restarts = restart_count()
    if restarts > slurm.requeues:
        raise HarnessError(
            f"job {_job_id()} was started again {restarts} times; slurm.requeues: {slurm.requeues}"
        )


def record_lost_attempts(
    runner: Runner, pending: Sequence[Trial], submission_folder: SubmissionFolder
) -> None:
    """Record attempts whose job was killed before it could, so that the next is another attempt.

    If Slurm has restarted this very job, the node that led it before is recorded as the attempt's
    host. The name of this node is left for the job's next start.
    """
    job_id = _job_id()
    node_file = submission_folder.node(job_id)
    previous_node = None
    reason = "its job ended without leaving a record"
    if node_file.exists():
        previous_node = node_file.read_text(encoding="utf-8")
        reason = f"job {job_id} ended on {previous_node} and was started again by Slurm"
    for trial in pending:
        runner.record_interruption(trial, reason, previous_node)
    write_atomically(node_file, os.environ.get("SLURMD_NODENAME", ""))


def _job_id() -> str:
    """Return the id of this job. For a job of an array it is unlike the id that squeue shows."""
    return os.environ["SLURM_JOB_ID"]


def restart_count() -> int:
    """Return how often this job was requeued, by its leader or by Slurm."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def runner_of(
    sweep_folder: SweepFolder, submission: Submission, ranks_per_node: int, listener: JobListener
) -> Runner:
    """Return the runner of this job's trials.

    Raises BadInput as `launcher_of` does.
    """
    return Runner(
        sweep=submission.sweep,
        profile=submission.profile,
        folder=sweep_folder,
        launcher=launcher_of(submission.profile, ranks_per_node),
        listener=listener,
        peaks=machine.read_all(sweep_folder.peaks_folder),
        first_attempts=submission.first_attempts,
        poll_seconds=POLL_SECONDS,
        retries=RETRIES,
        resumes=0,  # an interrupted trial continues when its job is back, not in this one
        stop_reason=listener.stop_reason,
    )


def launcher_of(profile: Profile, ranks_per_node: int) -> Srun:
    """Return the launcher that runs ranks as steps of this job.

    Raises BadInput if the profile's interface has no address on this node.
    """
    slurm = profile.slurm
    environment = dict(profile.environment)
    if slurm.interface:
        # Variables of the profile win over its interface.
        environment = {
            "GLOO_SOCKET_IFNAME": slurm.interface,
            "NCCL_SOCKET_IFNAME": slurm.interface,
        } | environment
    return Srun(
        environment=environment,
        ranks_per_node=ranks_per_node,
        cpus_per_rank=slurm.cpus_per_rank,
        python=slurm.python or sys.executable,
        prefix=slurm.prefix,
        address=node_address(slurm.interface),
        free_port=free_port,
    )


def pending_trials(runner: Runner, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that have to run.

    These are trials without a record of this submission, those that were interrupted, and those
    that run again because they were invalid, or were lost through no fault of their own.
    """
    pending = []
    for trial in trials:
        record = read_record_if_exists(runner.folder.trial_folder(trial.id).record_path)
        first_attempt = runner.first_attempts[trial.id]
        if (
            record is None
            or record.attempt < first_attempt
            or record.status == "interrupted"
            or runner.runs_again(record, first_attempt)
        ):
            pending.append(trial)
    return pending


def bad_nodes(runner: Runner, trials: Sequence[Trial]) -> set[str]:
    """Return the names of nodes with which an attempt of these trials was lost."""
    names: set[str] = set()
    for trial in trials:
        record = read_record_if_exists(runner.folder.trial_folder(trial.id).record_path)
        if record is not None:
            names.update(record.bad_nodes)
    return names


class JobListener:
    """Writes what happens to the job's log, and remembers the signals that Slurm has sent.

    `signal_due` is the time, in seconds since the epoch, at which Slurm sends the signal that
    precedes the time limit.
    """

    def __init__(self, signal_due: float) -> None:
        self.signal_due = signal_due
        self.signals: set[int] = set()
        self.first_signal_at: float | None = None  # seconds since the epoch

    def stop_reason(self) -> str | None:
        """Return why the running trial has to stop, None as long as it may go on.

        Slurm sends the same signal ahead of the time limit and of a preemption, so the time has to
        tell which it is. man sbatch allows it to be early.
        """
        if self.first_signal_at is None:
            return None
        if SIGNAL not in self.signals:
            return "ended by Slurm"
        if self.first_signal_at > self.signal_due - EARLY_SECONDS:
            return "time limit"
        return "preempted"

    def on_signal(self, number: int, frame: object) -> None:
        """Remember a signal of Slurm's. The runner asks for `stop_reason` and stops the running
        trial.
        """
        if self.first_signal_at is None:
            self.first_signal_at = time.time()
        self.signals.add(number)
        self.log(f"{signal.Signals(number).name}: the running trial is to save and stop")

    def log(self, text: str) -> None:
        """Print a line with the time, to the job's log, where the batch script's output goes."""
        print(time.strftime("%Y-%m-%d %H:%M:%S"), text, flush=True)

    def on_plan(self, pending: Sequence[Trial], finished: Sequence[Record]) -> None:
        """Do nothing: the leader has logged what is pending."""

    def on_trial_start(self, trial: Trial) -> None:
        """Log which trial starts."""
        self.log(f"{trial.id} starts: {trial.cell.label}")

    def on_trial_progress(self, trial: Trial, progress: Mapping[str, Any]) -> None:
        """Do nothing: `harness status` reads the trial's own report."""

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None:
        """Log how the trial ended."""
        reason = record.failure or "; ".join(record.violations)
        suffix = f": {one_line(reason)}" if reason else ""
        self.log(f"{record.trial.id} {record.status}{suffix}")


def requeue(slurm: SlurmOptions) -> None:
    """Have Slurm requeue this job.

    Raises HarnessError if it was requeued as often as the profile allows, or if Slurm refuses.
    """
    restarts = restart_count()
    if restarts >= slurm.requeues:
        raise HarnessError(
            f"job {_job_id()} was interrupted again after {restarts} requeues;"
            f" slurm.requeues: {slurm.requeues}"
        )
    completed = subprocess.run(
        ["scontrol", "requeue", _job_id()], capture_output=True, text=True, check=False
    )
    if completed.returncode:
        raise HarnessError(f"job {_job_id()} can't be requeued: {one_line(completed.stderr)}")


def exclude_nodes(nodes: Sequence[str], slurm: SlurmOptions) -> None:
    """Have Slurm start this job, which was requeued, without these nodes.

    If too few nodes would remain, nothing is done. A refusal is in the job's log, because scontrol
    writes there; a job that is not in the queue is not affected.
    """
    if partitions.can_exclude_nodes(nodes, slurm):
        names = ",".join(nodes)
        subprocess.run(
            ["scontrol", "update", f"JobId={_job_id()}", f"ExcNodeList={names}"], check=False
        )
