"""The state of every trial of a sweep: from the shared folder, and one look at Slurm's queue.

The folder comes first. It holds the records of trials that have ended, and the reports of those
that run, so that most of the status is known even if Slurm does not answer. A record may be that of an
earlier submission, a report of progress that of an attempt that was killed, and Slurm knows nothing of
trials: `conclude` says which of them counts.

A sweep that is watched is read again and again, so a record is parsed once for each time that it
was written, and only its header is kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from harness.core.errors import BadInput, one_line
from harness.core.logs import last_log_line
from harness.core.paths import SweepFolder, TrialFolder
from harness.launch.hang import RankEvidence, name_hang
from harness.launch.retries import failures_of, is_retried, last_saved_at
from harness.launch.watchdog import STALE_SECONDS
from harness.records.files import RECORD_FORMAT, read_record
from harness.records.record import Failure, Record, Status
from harness.records.running import read_heartbeats, read_progress_file
from harness.records.settings import saves_at_intervals
from harness.records.store import is_locked, recorded_trials
from harness.slurm import queue as queues
from harness.slurm import submission as submissions
from harness.slurm.queue import QueuedJob, SlurmDown
from harness.slurm.submission import Submission, SubmittedJob
from harness.spec.cell import ThroughputUnit, Trial
from harness.spec.sweep import Sweep

# lost: its job has ended and left no record of it; missing: it was never submitted; unreadable: nobody can
# say, as its record is broken.
State = Literal[
    "queued", "running", "done", "failed", "invalid", "interrupted", "cancelled", "lost", "missing",
    "unreadable",
]  # fmt: skip
# The trial goes on if its job still exists.
OPEN_STATES = {"queued", "running", "interrupted"}


@dataclass(frozen=True, kw_only=True)
class RecordHeader:
    """What the status takes from a trial's record."""

    status: Status
    attempt: int  # counted from 1
    detail: str  # why it failed or is invalid
    started: float = 0.0  # seconds since the epoch
    failures: Sequence[Failure] = ()  # of all attempts, the oldest first
    wall_seconds: float = 0.0  # of all attempts; 0 unless the trial has come to its end
    trained_seconds: float = 0.0  # of these
    saves: bool = False  # at intervals
    saved_at: float = 0.0  # when it was last, since the epoch, where it failed; 0 if never

    def is_retried(self, first_attempt: int) -> bool:
        """Return whether the job that has the trial runs it again.

        `first_attempt` is the first that belongs to the job's submission; failures before it do not
        count.
        """
        return self.status == "failed" and is_retried(
            self.failures, first_attempt, saves=self.saves, saved_at=self.saved_at
        )


@dataclass(frozen=True, kw_only=True)
class TrialFiles:
    """What a trial's folder says of its state."""

    record: RecordHeader | None = None
    unreadable: str | None = None  # why there is a record that can't be read
    progress: Mapping[str, Any] | None = None  # of a running trial, or of one that was killed
    # When an attempt began that has left no record yet, in seconds since the epoch.
    begun_at: float | None = None
    # Seconds since its last report of progress, or since it began; None where that is short.
    silent_seconds: float | None = None
    stall: str | None = None  # of a silent trial, what its ranks' heartbeats say


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
    silent_seconds: float | None = None  # without a report of a running trial, if they are many
    detail: str = ""
    # A job that has not ended has it, or a run on this machine will get to it.
    is_live: bool = False

    @property
    def is_final(self) -> bool:
        """Whether its record stays as it is.

        A live job may repeat a trial that failed or was invalid.
        """
        if self.state == "done":
            return True
        return self.state in ("failed", "invalid") and not self.is_live


@dataclass(frozen=True, kw_only=True)
class SweepStatus:
    """The state of a sweep.

    Of cells that only an earlier version of its file had, it has the trials that are done or that
    a job still has.
    """

    sweep: Sweep
    trials: Sequence[TrialState]
    # The share of wall time that trained, of the trials that have come to their end; None without any.
    ettr: float | None = None
    slurm_error: str | None  # why Slurm could not be asked; None where nothing depends on it

    @property
    def unreadable(self) -> list[str]:
        """The records that can't be read, each with the reason and what to do."""
        return [trial.detail for trial in self.trials if trial.state == "unreadable"]

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to wait for.

        While Slurm is silent, nobody knows whether the job of an open trial still exists.
        """
        for trial in self.trials:
            if trial.is_live or trial.state == "running":
                return False
            if self.slurm_error is not None and trial.state in OPEN_STATES:
                return False
        return True


def trial_states(
    trials: Sequence[Trial],
    sweep_folder: SweepFolder,
    submitted: Sequence[Submission],
    files: Mapping[str, TrialFiles],
    queue: Sequence[QueuedJob] | None,
    *,
    local_run_since: float | None = None,
) -> list[TrialState]:
    """Return the state of every trial, in the order of `trials`.

    `submitted` are the sweep's submissions, oldest first, so that the last one that has a trial
    counts. `files` are by trial id. `queue` is None where Slurm does not answer. `local_run_since` says
    when a `harness run` on this machine began that is going through what has no job, in seconds since
    the epoch; None without one.

    Pure, except that the log of a job that lost a trial is read, below `sweep_folder`.
    """
    jobs: dict[str, tuple[Submission, SubmittedJob]] = {}
    for submission in submitted:
        for job in submission.jobs():
            jobs |= dict.fromkeys(job.trial_ids, (submission, job))
    live_jobs = None if queue is None else queues.live_jobs(submitted, queue)
    last_line_of = cache(last_log_line)  # a job may have lost many trials
    states = []
    for trial in trials:
        trial_files = files.get(trial.id, TrialFiles())
        # A `harness run` takes over what has no job any more.
        known = jobs if live_jobs is None else live_jobs
        is_taken_over = local_run_since is not None and trial.id not in known
        if trial.id not in jobs or is_taken_over:
            states.append(_local_state(trial, trial_files, local_run_since))
            continue
        submission, job = jobs[trial.id]
        state = _submitted_state(trial, submission, trial_files, live_jobs)
        state = replace(state, is_submitted=True)
        if state.state == "lost":
            log = submissions.folder_of(sweep_folder, submission.id) / job.log
            detail = f"{state.detail}; last line of its log: {last_line_of(log)}; log: {log}"
            state = replace(state, detail=detail)
        states.append(state)
    return states


def _local_state(trial: Trial, files: TrialFiles, run_since: float | None) -> TrialState:
    """Return the state of a trial that was not submitted, or that has no job any more.

    `run_since` says when the present run on this machine began, None without one.
    """
    if files.begun_at is not None and run_since is not None and files.begun_at >= run_since:
        return _running(trial, files)
    state: State = "missing" if run_since is None else "queued"
    detail = ""
    if files.unreadable is not None:
        state, detail = "unreadable", files.unreadable
    elif files.record is not None:
        state, detail = files.record.status, files.record.detail
    is_live = run_since is not None and state in OPEN_STATES
    return _row(trial, state, detail, is_live=is_live)


def _submitted_state(
    trial: Trial,
    submission: Submission,
    files: TrialFiles,
    live_jobs: Mapping[str, QueuedJob] | None,
) -> TrialState:
    """Return the state of a trial that `submission` has.

    `live_jobs` are by trial id, None where Slurm does not answer.
    """
    record = files.record
    if record is not None and submission.is_preceded_by(trial.id, record.attempt, record.started):
        record = None  # an earlier submission left it
    job = None if live_jobs is None else live_jobs.get(trial.id)
    may_run = live_jobs is None or (job is not None and job.is_running)
    if may_run and (files.progress is not None or (job is not None and files.begun_at is not None)):
        return _running(trial, files, job)
    if files.unreadable is not None:
        return _row(trial, "unreadable", files.unreadable, job)
    is_retried = record is not None and record.is_retried(submission.first_attempts[trial.id])
    state, detail = conclude(
        record, job, submission, is_retried=is_retried, slurm_answers=live_jobs is not None
    )
    return _row(trial, state, detail, job, is_live=job is not None)


def conclude(
    record: RecordHeader | None,
    job: QueuedJob | None,
    submission: Submission,
    *,
    is_retried: bool,
    slurm_answers: bool,
) -> tuple[State, str]:
    """Return the state of a submitted trial that does not run, and what to say with it.

    `record` is of the last attempt of the submission, `job` has the trial and has not ended.
    """
    may_go_on = job is not None or not slurm_answers
    is_cancelled = job is None and submission.is_cancelled
    detail = "its job ended without a record of it"
    if record is not None:
        if is_retried and may_go_on:
            return "queued", f"to run again: {record.detail}"
        if record.status != "interrupted":
            return record.status, record.detail
        if may_go_on and not is_cancelled:
            return "interrupted", record.detail
        detail = f"its job ended; {record.detail}"
    if job is not None:
        return "queued", _pending_reason(job)
    if is_cancelled:
        return "cancelled", "" if record is None else record.detail
    if not slurm_answers:
        return "queued", "Slurm does not say whether its job still exists"
    return "lost", detail


def _pending_reason(job: QueuedJob) -> str:
    """Return why a trial does not run whose job has not ended."""
    if job.reason not in ("", "None"):
        return job.reason
    return f"its job is {job.state.lower()}"


def _row(
    trial: Trial,
    state: State,
    detail: str,
    job: QueuedJob | None = None,
    *,
    is_live: bool | None = None,
) -> TrialState:
    """Return the row of a trial; `job` has it, and has not ended."""
    return TrialState(
        trial=trial.id,
        label=trial.cell.label,
        seed=trial.seed,
        repeat=trial.repeat,
        state=state,
        job=job.id if job else None,
        nodes=job.nodes if job else "",
        throughput_unit=trial.cell.throughput_unit,
        detail=detail,
        is_live=job is not None if is_live is None else is_live,
    )


def _running(trial: Trial, files: TrialFiles, job: QueuedJob | None = None) -> TrialState:
    """Return the row of a trial that runs, with how far it is by its last report."""
    progress = files.progress or {"phase": "starting"}
    phase = str(progress.get("phase", "train"))
    detail = "" if phase == "train" else phase  # of one that trains, the step tells
    row = replace(
        _row(trial, "running", detail, job, is_live=True),
        step=progress.get("step"),
        steps=progress.get("steps"),
        throughput=progress.get("rate"),
    )
    if files.silent_seconds is None:
        return row
    parts = [detail, f"no report for {files.silent_seconds:.0f} s", files.stall]
    return replace(
        row,
        throughput=None,  # the last rate is no longer true
        silent_seconds=files.silent_seconds,
        detail="; ".join(part for part in parts if part),
    )


def read_statuses(sweeps: Sequence[tuple[Sweep, SweepFolder]]) -> list[SweepStatus]:
    """Read the folders of the sweeps, and ask Slurm once if any of them was ever submitted.

    That Slurm does not answer is no error: `slurm_error` says so where a state depends on it.

    Raises BadInput for a file that can't be read.
    """
    submissions_by_sweep = []
    all_submissions: list[Submission] = []
    for _sweep, sweep_folder in sweeps:
        submitted = submissions.read_all(sweep_folder)
        submissions_by_sweep.append(submitted)
        all_submissions += submitted
    queue: Sequence[QueuedJob] | None = None
    slurm_error = None
    try:
        queue = queues.query(all_submissions)
    except SlurmDown as error:
        slurm_error = str(error)
    statuses = []
    for (sweep, sweep_folder), submitted in zip(sweeps, submissions_by_sweep, strict=True):
        status = _read_status(sweep, sweep_folder, submitted, queue)
        is_open = any(trial.state in OPEN_STATES for trial in status.trials)
        if submitted and is_open:
            status = replace(status, slurm_error=slurm_error)
        statuses.append(status)
    return statuses


def _read_status(
    sweep: Sweep,
    sweep_folder: SweepFolder,
    submitted: Sequence[Submission],
    queue: Sequence[QueuedJob] | None,
) -> SweepStatus:
    """Read the folder of one sweep; `queue` is None where Slurm does not answer."""
    # Jobs may still have trials that an earlier version of the sweep file asked for.
    trials: dict[str, Trial] = {}
    for version in [*(submission.sweep for submission in submitted), sweep]:
        for trial in version.trials():
            trials[trial.id] = trial
    subfolders = sweep_folder.subfolders()
    further_ids = sweep_folder.recorded_ids([name for name in subfolders if name not in trials])
    for trial in recorded_trials(further_ids, sweep.cells):  # of other seeds, or further repeats
        trials[trial.id] = trial
    files = {}
    present = set(subfolders)  # most trials of a sweep that has just begun have no folder
    for trial_id, trial in trials.items():
        if trial_id in present:
            trial_folder = sweep_folder.trial_folder(trial_id)
            files[trial_id] = read_trial_files(trial_folder, trial)
    local_run_since = None
    if is_locked(sweep_folder):  # by a `harness run`, and the file is as old as the run
        local_run_since = _modified_at(sweep_folder.lock_path)
    rows = trial_states(
        list(trials.values()),
        sweep_folder,
        submitted,
        files,
        queue,
        local_run_since=local_run_since,
    )
    headers = [entry.record for entry in files.values() if entry.record is not None]
    wall = sum(header.wall_seconds for header in headers)
    return SweepStatus(
        sweep=sweep,
        trials=_without_earlier(rows, trials, sweep, slurm_answers=queue is not None),
        ettr=sum(header.trained_seconds for header in headers) / wall if wall else None,
        slurm_error=None,
    )


def _without_earlier(
    rows: Sequence[TrialState], trials: Mapping[str, Trial], sweep: Sweep, *, slurm_answers: bool
) -> list[TrialState]:
    """Return the rows without trials of cells that the sweep no longer has.

    Such a trial stays if it is done or has a job. If it went wrong, nothing is left to do about it:
    no command runs it again. `trials` are by id.
    """
    present_cells = {cell.id for cell in sweep.cells}
    shown = []
    for row in rows:
        has_job = row.job is not None if slurm_answers else row.state in OPEN_STATES
        is_present = trials[row.trial].cell.id in present_cells
        if is_present or row.state == "done" or has_job:
            shown.append(row)
    return shown


def read_trial_files(trial_folder: TrialFolder, trial: Trial) -> TrialFiles:
    """Read what counts for the status from the folder of a trial.

    Heartbeats are read only of a trial that has not reported for a while, so that what is read does
    not grow with the number of ranks.

    A record that can't be read is named in `unreadable`.
    """
    path = trial_folder.record_path
    record = None
    recorded_at = 0
    unreadable = None
    try:
        stat = path.stat()
        recorded_at = stat.st_mtime_ns
        record = _read_header(path, stat)
    except FileNotFoundError:
        pass  # the trial has no record yet
    except BadInput as error:
        unreadable = str(error)
    except OSError as error:
        unreadable = str(RECORD_FORMAT.unavailable(path, error))
    # Both files are the work of the machine that runs the trial, so their times can be compared.
    begun_at = _modified_at(trial_folder.assignment_path)
    read = TrialFiles(record=record, unreadable=unreadable)
    if begun_at * 1e9 <= recorded_at:
        return read
    progress = read_progress_file(trial_folder.progress_path)
    read = replace(read, progress=progress or None, begun_at=begun_at)
    silent_seconds = time.time() - progress.get("at", begun_at)
    if silent_seconds < STALE_SECONDS:
        return read
    beats = read_heartbeats(trial_folder.heartbeat_folder)
    hang = name_hang([RankEvidence(heartbeat=beat) for beat in beats], trial.cell.axes.world_size)
    stall = None if hang is None else str(hang)
    return replace(read, silent_seconds=silent_seconds, stall=stall)


# For `harness status --watch`, which looks at all records again and again.
_headers_by_path: dict[Path, tuple[os.stat_result, RecordHeader]] = {}


def _read_header(path: Path, stat: os.stat_result) -> RecordHeader:
    """Return what the status shows of a record; it is read again only when its file has changed."""
    previous = _headers_by_path.get(path)
    if previous is not None:
        previous_stat, header = previous
        is_same_file = previous_stat.st_ino == stat.st_ino
        if is_same_file and previous_stat.st_ctime_ns == stat.st_ctime_ns:
            return header
    header = _summary(read_record(path), path)
    _headers_by_path[path] = (stat, header)
    return header


def _summary(record: Record, path: Path) -> RecordHeader:
    """Return what counts of the record at `path` for the status of its trial."""
    detail = "; ".join(record.violations)
    if record.failure is not None:
        detail = str(record.failure)
    wall = record.numbers.get("wall_s", 0.0)
    header = RecordHeader(
        status=record.status,
        attempt=record.attempt,
        started=record.started,
        detail=one_line(detail),
        failures=failures_of(record),
        wall_seconds=wall,
        trained_seconds=wall * record.numbers.get("ettr", 0.0),
    )
    if record.status != "failed" or not saves_at_intervals(record):
        return header
    return replace(header, saves=True, saved_at=last_saved_at(TrialFolder(path.parent)))


def _modified_at(path: Path) -> float:
    """Return when a file was last written, in seconds since the epoch; 0 if there is none."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
