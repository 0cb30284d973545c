"""The state of every trial of a sweep: from the shared folder, and one look at Slurm's queue.

The folder comes first. A trial whose record is newer than its last attempt has ended; one whose attempt has
no record is running if its job is, or the `harness run` that holds the sweep; else the queue says what is to
come of it. So most of the status is known even if Slurm does not answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal

from harness.core.errors import BadInput, one_line
from harness.core.files import last_log_line
from harness.core.paths import SweepFolder, TrialFolder
from harness.launch.attempts import runs_again
from harness.launch.watch import STALE_SECONDS
from harness.records.assignment import read_progress_file
from harness.records.files import read_record_if_exists
from harness.records.record import Record
from harness.records.store import is_locked, recorded_trials
from harness.slurm import queue as queues
from harness.slurm import submission as submissions
from harness.slurm.queue import QueuedJob, SlurmDown
from harness.slurm.submission import Submission
from harness.sweep.cell import ThroughputUnit, Trial
from harness.sweep.sweep import Sweep

# queued: its job, or a run on this machine, will get to it, perhaps again; lost: its job has ended and left
# no record of it; missing: nothing will run it; unreadable: nobody can say, as its record is broken.
State = Literal[
    "queued", "running", "done", "failed", "invalid", "interrupted", "cancelled", "lost", "missing",
    "unreadable",
]  # fmt: skip
LAG_SECONDS = 70.0  # a shared folder may show a record only after so long: man nfs, acdirmax
OPEN_STATES = {"queued", "running"}


@dataclass(frozen=True, kw_only=True)
class TrialState:
    """The state of one trial: a row of `harness status`, and of its JSON."""

    trial: str  # id
    label: str  # of its cell
    seed: int
    repeat: int
    state: State
    job: str | None = None  # id of the job that has it and has not ended, as squeue shows it
    nodes: str = ""  # of its job
    step: int | None = None  # that a running trial has reached
    steps: int | None = None  # that it will train
    # Over all ranks, by its last report; None if that is old.
    throughput: float | None = None
    throughput_unit: ThroughputUnit = "samples/s"
    detail: str = ""
    log: str | None = None  # path of the one to look into, of a trial that has failed


@dataclass(frozen=True, kw_only=True)
class SweepStatus:
    """The state of a sweep.

    It has the trials of its cells, and those of an earlier version of its file that jobs still have.
    """

    sweep: Sweep
    trials: Sequence[TrialState]
    slurm_error: str | None = None  # why Slurm could not be asked; None where nothing depends on it

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to wait for."""
        return not any(trial.state in OPEN_STATES for trial in self.trials)


def read_statuses(
    sweeps: Sequence[tuple[Sweep, SweepFolder]], errors: list[BadInput] | None = None
) -> list[SweepStatus]:
    """Read the folders of the sweeps, and ask Slurm once if any of them was ever submitted.

    That Slurm does not answer is no error: `slurm_error` says so where a state depends on it. Raises
    BadInput for a submission that can't be read; with `errors`, it is added there, and its sweep left out.
    """
    submitted: list[tuple[Sweep, SweepFolder, list[Submission]]] = []
    for sweep, folder in sweeps:
        try:
            submitted.append((sweep, folder, submissions.read_all(folder)))
        except BadInput as error:
            if errors is None:
                raise
            errors.append(error)
    queue: Sequence[QueuedJob] | None = None
    slurm_error = None
    try:
        queue = queues.query(list(chain.from_iterable(made for _, _, made in submitted)))
    except SlurmDown as error:
        slurm_error = str(error)
    statuses = []
    for sweep, folder, made in submitted:
        status = sweep_status(sweep, folder, made, queue)
        if made and not status.is_over:
            status = replace(status, slurm_error=slurm_error)
        statuses.append(status)
    return statuses


def until_over(read: Callable[[], list[SweepStatus]], pause: float) -> Iterator[list[SweepStatus]]:
    """Give what `read` returns again and again, until nothing is left to wait for.

    The record of a trial that looks lost may exist, and not be visible yet on a shared file system. Where
    all was over from the start, that is not waited for. `pause` is in seconds.
    """
    last_live_at = -math.inf  # on the monotonic clock
    while True:
        statuses = read()
        yield statuses
        states = {trial.state for status in statuses for trial in status.trials}
        if states & OPEN_STATES:
            last_live_at = time.monotonic()
        elif "lost" not in states or time.monotonic() > last_live_at + LAG_SECONDS:
            return
        time.sleep(pause)


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
    trials = {trial.id: trial for trial in sweep.trials()}
    # Of other seeds, or further repeats; most trials of a sweep that has just begun have no folder.
    further_ids = sweep_folder.recorded_ids(set(sweep_folder.subfolders()) - trials.keys())
    trials |= {trial.id: trial for trial in recorded_trials(further_ids, sweep.cells)}
    owners: dict[str, Owner] = {}
    for submission in submitted:
        owners |= _job_owners(submission, sweep_folder, queue)
        # Jobs may still have trials that an earlier version of the sweep file asked for.
        for trial in submission.sweep.trials():
            if trial.id in owners and owners[trial.id].may_have_job:
                trials.setdefault(trial.id, trial)
    nobody = Owner()
    if is_locked(sweep_folder):  # by a `harness run`, and the file is as old as the run
        nobody = Owner(may_go_on=True, runs_since=sweep_folder.lock_path.stat().st_mtime)
    rows = []
    for trial in trials.values():
        owner = owners.get(trial.id, nobody)
        if nobody.may_go_on and not owner.may_have_job:  # a run takes over what has no job any more
            owner = nobody
        rows.append(trial_state(trial, sweep_folder.trial_folder(trial.id), owner))
    return SweepStatus(sweep=sweep, trials=rows)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """What runs a trial, or would: a job, or a run on this machine; by default, nothing does."""

    submission: Submission | None = None  # the last one that has it
    log: Path = Path()  # of its job
    job: QueuedJob | None = None  # that has not ended
    may_go_on: bool = False  # also where Slurm does not answer
    waiting_for: str = ""
    runs_since: float = math.inf  # an attempt that began earlier does not run; since the epoch

    @property
    def may_have_job(self) -> bool:
        """Whether a job may still have the trial; one that was cancelled may not have ended."""
        return self.job is not None or self.may_go_on


def _job_owners(
    submission: Submission, sweep_folder: SweepFolder, queue: Sequence[QueuedJob] | None
) -> dict[str, Owner]:
    """Return what has the trials of a submission, by their ids."""
    owners: dict[str, Owner] = {}
    live = queues.live_jobs(submission, queue or ())
    for submitted in submission.jobs():
        job = live.get(submitted.trial_ids[0]) if submitted.trial_ids else None
        may_go_on = not submission.is_cancelled and (job is not None or queue is None)
        is_started, waiting_for = may_go_on, "Slurm does not say whether its job still exists"
        if job is not None:
            is_started, waiting_for = job.is_running, job.reason
            if job.reason in ("", "None"):
                waiting_for = f"its job is {job.state.lower()}"
        owner = Owner(
            submission=submission,
            log=submissions.folder_of(sweep_folder, submission.id) / submitted.log,
            job=job,
            may_go_on=may_go_on,
            waiting_for=waiting_for,
            runs_since=0.0 if is_started else math.inf,
        )
        owners |= dict.fromkeys(submitted.trial_ids, owner)
    return owners


def trial_state(trial: Trial, folder: TrialFolder, owner: Owner) -> TrialState:
    """Return the state of a trial by its folder, and by what has it."""
    submission, job = owner.submission, owner.job
    row = TrialState(
        trial=trial.id,
        label=trial.cell.label,
        seed=trial.seed,
        repeat=trial.repeat,
        state="missing",
        job=job.id if job else None,
        nodes=job.nodes if job else "",
        throughput_unit=trial.cell.throughput_unit,
    )
    try:
        record = read_record_if_exists(folder.record_path)
    except BadInput as error:
        return replace(row, state="unreadable", detail=str(error))
    if record is None:
        known = _running(row, folder, owner)
    else:
        known = _ended(row, record, folder, owner)
    if known is not None:
        return known
    if owner.may_go_on:
        return replace(row, state="queued", detail=owner.waiting_for)
    if submission is None:
        return row
    if submission.is_cancelled:
        return replace(row, state="cancelled")
    how = "its job ended without a record of it"
    if record is not None and record.failure is not None and record.status == "interrupted":
        how = f"its job ended; {one_line(str(record.failure))}"
    detail = f"{how}; last line of its log: {last_log_line(owner.log)}; log: {owner.log}"
    return replace(row, state="lost", detail=detail)


def _ended(row: TrialState, record: Record, folder: TrialFolder, owner: Owner) -> TrialState | None:
    """Return the row of a trial that has ended, None if an earlier submission's record is replaced, or it is
    to go on.
    """
    submission = owner.submission
    if submission is not None and record.started < submission.created_at:
        return None
    detail = one_line(str(record.failure or "; ".join(record.violations)))
    if record.failure is not None and record.failure.log is not None:
        row = replace(row, log=str(folder.path / record.failure.log))
    is_repeated = record.status == "interrupted"
    if submission is not None:  # a run on this machine repeats it at once, or not at all
        reruns = submission.profile.validity.reruns
        is_repeated |= runs_again(record, folder, submission.created_at, reruns)
    if owner.may_go_on and is_repeated:
        return replace(row, state="queued", detail=f"to run again: {detail}")
    if record.status == "interrupted" and submission is not None:
        return None
    return replace(row, state=record.status, detail=detail)


def _running(row: TrialState, folder: TrialFolder, owner: Owner) -> TrialState | None:
    """Return the row of a trial that runs, with how far it is by its last report; None if it doesn't."""
    begun_at = 0.0
    with suppress(FileNotFoundError):  # no attempt has begun
        begun_at = folder.assignment_path.stat().st_mtime
    if not begun_at or begun_at < owner.runs_since:
        return None
    progress = read_progress_file(folder.progress_path)
    # Where Slurm does not answer, only a report tells that it has begun since.
    if not progress and owner.job is None and owner.submission is not None:
        return None
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
        throughput_unit=progress.get("unit", row.throughput_unit),
        detail=detail,
    )
