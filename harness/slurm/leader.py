"""What a job does, once, on its first node: run its trials as steps, one after the other, each leaving its record.

submitit calls `lead`; nothing else of submitit takes part. The user signal, which Slurm sends before the time limit
and at a preemption, goes to the batch script alone, which this process has taken the place of: between two trials
there is no step that could get it. It is passed on to the running trial, which saves and stops; then the job puts
itself back into the queue, and goes on from there when it is back.
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

ALLOCATION_LOST = {"NodeFailure", "NotStarted"}  # no trial can run in this job any more
EARLY = 60.0  # seconds that Slurm may send the signal too early: man sbatch, --signal
POLL = 0.5  # seconds between looks at a running trial, over a shared file system
RETRIES = 2  # of a trial that was lost through no fault of its own


def lead(folder: str, submission_id: str, array: int, element: int) -> None:
    """Run what is left of a job's trials. Raises HarnessError, for Slurm to see, if some will stay undone."""
    sweep = SweepFolder(Path(folder))
    submission = submissions.read(submissions.folder_of(sweep, submission_id).file)
    slurm = submission.profile.slurm
    refuse_cancelled(submission)
    told = JobListener(time.time() + slurm.time_limit_seconds - slurm.warning)
    for number in (SIGNAL, signal.SIGTERM):
        signal.signal(number, told.signalled)
    runner = runner_of(sweep, submission, submission.arrays[array].ranks_per_node, told)
    trials = {trial.id: trial for trial in submission.sweep.trials()}
    load = [trials[trial] for trial in submission.arrays[array].loads[element]]
    pending = left(runner, load)
    told.say(
        f"job {os.environ['SLURM_JOB_ID']} on {os.environ['SLURM_JOB_NODELIST']}: {len(pending)} of {len(load)}"
    )
    give_up(runner, pending, submissions.folder_of(sweep, submission_id))
    if restarts() > slurm.requeues:  # Slurm starts a job again by itself when its node dies
        raise HarnessError(
            f"job {os.environ['SLURM_JOB_ID']} was started again {restarts()} times; {most(slurm)}"
        )
    interrupted = None
    for found in runner.run(pending):
        if found.status == "interrupted" or (
            found.failure and found.failure.kind in ALLOCATION_LOST
        ):
            interrupted = str(found.failure)
            break
    if not (undone := left(runner, load)):
        return
    refuse_cancelled(submissions.read(submissions.folder_of(sweep, submission_id).file))
    back = SIGNAL in told.signals or (
        interrupted and not told.signals and not cancelled_by_user(interrupted)
    )
    if back:
        requeue(slurm)
    if bad := bad_nodes(runner, undone):
        leave_out(
            sorted({*submission.excluded, *bad}),
            replace(slurm, nodes=submission.arrays[array].nodes),
        )
    if not back:
        raise HarnessError(
            f"{len(undone)} trials are left undone" + (f": {interrupted}" if interrupted else "")
        )


def refuse_cancelled(submission: Submission) -> None:
    """Raises HarnessError if somebody has cancelled it: what goes back into the queue then would run all the same."""
    if submission.cancelled:
        raise HarnessError("the sweep's jobs were cancelled")


def give_up(runner: Runner, pending: Sequence[Trial], folder: SubmissionFolder) -> None:
    """Record the attempts that ended without a word, with the node that led them if this job did, and leave this node's
    name for the next time."""
    job, node = os.environ["SLURM_JOB_ID"], os.environ.get("SLURMD_NODENAME", "")
    before = folder.node(job).read_text(encoding="utf-8") if folder.node(job).exists() else None
    why = (
        f"job {job} ended on {before} and was started again by Slurm"
        if before
        else "its job ended without a word"
    )
    for trial in pending:
        runner.record_interruption(trial, why, before)
    write_atomically(folder.node(job), node)


def restarts() -> int:
    """How often this job has been put back into the queue, by itself or by Slurm."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def most(slurm: SlurmOptions) -> str:
    return f"slurm.requeues: {slurm.requeues}"


def runner_of(
    sweep: SweepFolder, submission: Submission, ranks_per_node: int, told: JobListener
) -> Runner:
    return Runner(
        sweep=submission.sweep,
        profile=submission.profile,
        folder=sweep,
        launcher=launcher_of(submission.profile, ranks_per_node),
        listener=told,
        peaks=machine.read_all(sweep.peaks_folder),
        first_attempts=submission.attempts,
        poll_seconds=POLL,
        retries=RETRIES,
        resumes=0,
        stop_reason=told.why,
    )


def launcher_of(profile: Profile, ranks_per_node: int) -> Srun:
    """For the job that this process leads. Raises BadInput as `node_address` does."""
    slurm = profile.slurm
    network = {
        name: slurm.interface
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        if slurm.interface
    }
    return Srun(
        environment=network | profile.environment,
        ranks_per_node=ranks_per_node,
        cpus_per_rank=slurm.cpus_per_rank,
        python=slurm.python or sys.executable,
        prefix=slurm.prefix,
        address=node_address(slurm.interface),
        free_port=free_port,
    )


def left(runner: Runner, load: Sequence[Trial]) -> list[Trial]:
    """The trials that have no record of this submission yet, and those that run again."""
    found = []
    for trial in load:
        path, first = (
            runner.folder.trial_folder(trial.id).record_path,
            runner.first_attempts[trial.id],
        )
        known = read_record_if_exists(path)
        over = known is not None and known.attempt >= first and known.status != "interrupted"
        if known is None or not over or runner.runs_again(known, first):
            found.append(trial)
    return found


def bad_nodes(runner: Runner, trials: Sequence[Trial]) -> set[str]:
    """Those that an attempt was lost with."""
    found = [
        read_record_if_exists(runner.folder.trial_folder(trial.id).record_path) for trial in trials
    ]
    return {node for known in found if known for node in known.bad_nodes}


class JobListener:
    """Writes what happens to the job's log, and knows what Slurm has asked for."""

    def __init__(self, warned: float) -> None:
        self.warned = (
            warned  # when Slurm sends the signal for the time limit, if it does so on time
        )
        self.signals: set[int] = set()
        self.at = 0.0  # of the first signal

    def why(self) -> str | None:
        """What the signals so far mean; Slurm does not say."""
        if not self.signals:
            return None
        if SIGNAL not in self.signals:
            return "ended by Slurm"
        return "time limit" if self.at > self.warned - EARLY else "preempted"

    def signalled(self, number: int, frame: object) -> None:
        self.at = self.at or time.time()
        self.signals.add(number)
        self.say(f"{signal.Signals(number).name}: the running trial is to save and stop")

    def say(self, text: str) -> None:
        print(time.strftime("%Y-%m-%d %H:%M:%S"), text, flush=True)

    def on_plan(self, pending: Sequence[Trial], finished: Sequence[Record]) -> None: ...

    def on_trial_start(self, trial: Trial) -> None:
        self.say(f"{trial.id} begins: {trial.cell.label}")

    def on_trial_progress(self, trial: Trial, progress: Mapping[str, Any]) -> None: ...

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None:
        why = record.failure or "; ".join(record.violations)
        self.say(f"{record.trial.id} {record.status}" + (f": {one_line(why)}" if why else ""))


def requeue(slurm: SlurmOptions) -> None:
    """Have Slurm put this job back into its queue. Raises HarnessError where that is over or refused."""
    job = os.environ["SLURM_JOB_ID"]
    if restarts() >= slurm.requeues:
        raise HarnessError(
            f"job {job} was interrupted once more after {restarts()} requeues; {most(slurm)}"
        )
    done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HarnessError(f"job {job} can't go back into the queue: {one_line(done.stderr)}")


def leave_out(nodes: Sequence[str], asked: SlurmOptions) -> None:
    """Have Slurm start this job, which it or `requeue` has put back into the queue, on others, if there are enough."""
    if partitions.can_exclude_nodes(nodes, asked):
        job = os.environ["SLURM_JOB_ID"]
        # What it says is in the job's log; a job that is not in the queue is left alone.
        subprocess.run(
            ["scontrol", "update", f"JobId={job}", f"ExcNodeList={','.join(nodes)}"], check=False
        )
