"""The state of every trial of a sweep: from the shared folder, and one look at Slurm's queue.

The folder comes first. A trial whose record is newer than its last attempt has ended; one whose attempt has
no record is running if its job is, or the `harness run` that holds the sweep; else the queue says what is to
come of it. So most of the status is known even if Slurm does not answer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from harness.core.errors import BadInput, one_line
from harness.core.logs import last_log_line
from harness.core.paths import SweepFolder, TrialFolder
from harness.launch.retries import runs_again
from harness.launch.watch import STALE_SECONDS
from harness.records.files import read_record_if_exists
from harness.records.record import Record
from harness.records.running import read_progress_file
from harness.records.store import is_locked, recorded_trials
from harness.slurm import queue as queues
from harness.slurm import submission as submissions
from harness.slurm.queue import QueuedJob, SlurmDown
from harness.slurm.submission import Submission
from harness.spec.cell import ThroughputUnit, Trial
from harness.spec.sweep import Sweep

# queued: its job, or a run on this machine, will get to it, perhaps again; lost: its job has ended and left
# no record of it; missing: nothing will run it; unreadable: nobody can say, as its record is broken.
State = Literal[
    "queued", "running", "done", "failed", "invalid", "interrupted", "cancelled", "lost", "missing",
    "unreadable",
]  # fmt: skip
LAG_SECONDS = 70.0  # a shared folder may show a record only after so long: man nfs, acdirmax
OPEN_STATES = {"queued", "running"}
FINAL_STATES = {"done", "failed", "invalid"}


@dataclass(frozen=True, kw_only=True)
class TrialState:
    """The state of one trial: a row of `harness status`, and of its JSON."""

    trial: str  # id
    label: str  # of its cell
    seed: int
    repeat: int
    state: State
    is_submitted: bool = False  # to Slurm, and not taken over by a run on this machine
    job: str | None = None  # id of the job that has it and has not ended, as squeue shows it
    nodes: str = ""  # of its job
    step: int | None = None  # that a running trial has reached
    steps: int | None = None  # that it will train
    # Over all ranks, by its last report; None if that is old.
    throughput: float | None = None
    throughput_unit: ThroughputUnit = "samples/s"
    detail: str = ""

    @property
    def is_live(self) -> bool:
        """Whether something is to be waited for."""
        return self.state in OPEN_STATES

    @property
    def is_final(self) -> bool:
        """Whether its record stays as it is."""
        return self.state in FINAL_STATES


@dataclass(frozen=True, kw_only=True)
class SweepStatus:
    """The state of a sweep.

    It has the trials of its cells, and those of an earlier version of its file that jobs still have.
    """

    sweep: Sweep
    trials: Sequence[TrialState]
    slurm_error: str | None = None  # why Slurm could not be asked; None where nothing depends on it

    @property
    def unreadable(self) -> list[str]:
        """The records that can't be read, each with the reason and what to do."""
        return [trial.detail for trial in self.trials if trial.state == "unreadable"]

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to wait for."""
        return not any(trial.is_live for trial in self.trials)


def read_statuses(sweeps: Sequence[tuple[Sweep, SweepFolder]]) -> list[SweepStatus]:
    """Read the folders of the sweeps, and ask Slurm once if any of them was ever submitted.

    That Slurm does not answer is no error: `slurm_error` says so where a state depends on it.

    Raises BadInput for a file that can't be read.
    """
    submitted = [submissions.read_all(folder) for _, folder in sweeps]
    queue: Sequence[QueuedJob] | None = None
    slurm_error = None
    try:
        queue = queues.query([submission for made in submitted for submission in made])
    except SlurmDown as error:
        slurm_error = str(error)
    statuses = []
    for (sweep, folder), made in zip(sweeps, submitted, strict=True):
        status = sweep_status(sweep, folder, made, queue)
        if made and not status.is_over:
            status = replace(status, slurm_error=slurm_error)
        statuses.append(status)
    return statuses


def sweep_status(
    sweep: Sweep,
    sweep_folder: SweepFolder,
    submitted: Sequence[Submission],
    queue: Sequence[QueuedJob] | None,
) -> SweepStatus:
    """Return the status of one sweep.

    `submitted` are its submissions, oldest first, so that the last one that has a trial counts.
    `queue` is None where Slurm does not answer.
    """
    live = queues.live_jobs(submitted, queue or ())
    trials = {trial.id: trial for trial in sweep.trials()}
    # Of other seeds, or further repeats; most trials of a sweep that has just begun have no folder.
    further_ids = sweep_folder.recorded_ids(set(sweep_folder.subfolders()) - trials.keys())
    trials |= {trial.id: trial for trial in recorded_trials(further_ids, sweep.cells)}
    submission_of: dict[str, Submission] = {}
    logs: dict[str, Path] = {}
    for submission in submitted:
        folder = submissions.folder_of(sweep_folder, submission.id)
        for job in submission.jobs():
            submission_of |= dict.fromkeys(job.trial_ids, submission)
            logs |= dict.fromkeys(job.trial_ids, folder / job.log)
        # Jobs may still have trials that an earlier version of the sweep file asked for.
        for trial in submission.sweep.trials():
            if trial.id in live or (queue is None and trial.id in submission_of):
                trials.setdefault(trial.id, trial)
    run_since = None
    if is_locked(sweep_folder):  # by a `harness run`, and the file is as old as the run
        run_since = _modified_at(sweep_folder.lock_path)
    rows = []
    for trial in trials.values():
        owner = Owner(
            submission=submission_of.get(trial.id),
            job=live.get(trial.id),
            slurm_answers=queue is not None,
            run_since=run_since,
        )
        row = trial_state(trial, sweep_folder.trial_folder(trial.id), owner)
        if row.state == "lost":
            log = logs[trial.id]
            detail = f"{row.detail}; last line of its log: {last_log_line(log)}; log: {log}"
            row = replace(row, detail=detail)
        rows.append(row)
    return SweepStatus(sweep=sweep, trials=rows)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """What runs a trial, or would."""

    submission: Submission | None = None  # the last one that has it
    job: QueuedJob | None = None  # of a submission, that has not ended
    slurm_answers: bool = True
    # When a `harness run` on this machine began that has the sweep, in seconds since the epoch.
    run_since: float | None = None

    @property
    def is_local(self) -> bool:
        """Whether a run on this machine has the trial: it takes over what has no job any more."""
        has_job = self.submission is not None and (self.job is not None or not self.slurm_answers)
        return self.run_since is not None and not has_job

    @property
    def is_cancelled(self) -> bool:
        """Whether the trial was submitted, and its job cancelled."""
        return self.submission is not None and self.submission.is_cancelled

    @property
    def may_go_on(self) -> bool:
        """Whether the trial may still run; nobody knows where Slurm does not answer."""
        if self.is_local:
            return True
        if self.is_cancelled:  # whatever of its job is still ending
            return False
        return self.job is not None or (self.submission is not None and not self.slurm_answers)

    def may_have_begun(self, attempt_at: float) -> bool:
        """Return whether an attempt that began at this time may be running."""
        if self.is_local:
            return attempt_at >= (self.run_since or 0.0)
        return self.job.is_running if self.job is not None else self.may_go_on


def trial_state(trial: Trial, folder: TrialFolder, owner: Owner) -> TrialState:
    """Return the state of a trial by its folder, and by what has it."""
    row = _row(trial, owner)
    try:
        record = read_record_if_exists(folder.record_path)
    except BadInput as error:
        return replace(row, state="unreadable", detail=str(error))
    # Both files are the work of the machine that runs the trial, so their times can be compared.
    begun_at = _modified_at(folder.assignment_path)
    if begun_at > _modified_at(folder.record_path) and owner.may_have_begun(begun_at):
        progress = read_progress_file(folder.progress_path)
        if progress or owner.slurm_answers:
            return _running(row, progress, begun_at)
    if record is not None and not _is_earlier(record, owner):
        detail = one_line(str(record.failure or "; ".join(record.violations)))
        if owner.may_go_on and _is_repeated(record, folder, owner.submission):
            return replace(row, state="queued", detail=f"to run again: {detail}")
        if record.status != "interrupted" or not row.is_submitted:
            return replace(row, state=record.status, detail=detail)
        return _unfinished(row, owner, f"its job ended; {detail}")
    return _unfinished(row, owner, "its job ended without a record of it")


def _row(trial: Trial, owner: Owner) -> TrialState:
    """Return the row of a trial that has not begun, and that nothing will run."""
    job = owner.job
    return TrialState(
        trial=trial.id,
        label=trial.cell.label,
        seed=trial.seed,
        repeat=trial.repeat,
        state="missing",
        is_submitted=owner.submission is not None and not owner.is_local,
        job=job.id if job else None,
        nodes=job.nodes if job else "",
        throughput_unit=trial.cell.throughput_unit,
    )


def _unfinished(row: TrialState, owner: Owner, how_lost: str) -> TrialState:
    """Return the row of a trial that does not run and has no result, by what has it."""
    if owner.may_go_on:
        return replace(row, state="queued", detail=_waiting_reason(owner))
    if owner.is_cancelled:
        return replace(row, state="cancelled")
    if owner.submission is not None:
        return replace(row, state="lost", detail=how_lost)
    return row


def _is_earlier(record: Record, owner: Owner) -> bool:
    """Return whether an earlier submission left the record, which the present one replaces."""
    if owner.submission is None or owner.is_local:
        return False
    return owner.submission.is_preceded_by(record.trial.id, record.attempt, record.started)


def _is_repeated(record: Record, folder: TrialFolder, submission: Submission | None) -> bool:
    """Return whether what has a trial runs it again after this record."""
    if record.status == "interrupted":
        return True
    if submission is None:  # a run on this machine repeats it at once, or not at all
        return False
    return runs_again(record, folder, submission.created_at, submission.profile.validity.reruns)


def _waiting_reason(owner: Owner) -> str:
    """Return why a trial does not run yet that may."""
    if owner.is_local:
        return ""
    if owner.job is None:
        return "Slurm does not say whether its job still exists"
    is_reason_known = owner.job.reason not in ("", "None")
    return owner.job.reason if is_reason_known else f"its job is {owner.job.state.lower()}"


def _running(row: TrialState, progress: Mapping[str, Any], begun_at: float) -> TrialState:
    """Return the row of a trial that runs, with how far it is by its last report."""
    phase = str(progress.get("phase", "starting"))
    detail = "" if phase == "train" else phase  # of one that trains, the step tells
    rate = progress.get("rate")
    silent_seconds = time.time() - progress.get("at", begun_at)
    if silent_seconds > STALE_SECONDS:
        detail = f"{detail}; no report for {silent_seconds:.0f} s".removeprefix("; ")
        rate = None  # the last one is no longer true
    return replace(
        row,
        state="running",
        step=progress.get("step"),
        steps=progress.get("steps"),
        throughput=rate,
        detail=detail,
    )


def _modified_at(path: Path) -> float:
    """Return when a file was last written, in seconds since the epoch; 0 if there is none."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
