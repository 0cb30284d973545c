"""The attempts at a trial: each is one start of its ranks, with a folder that no other attempt changes.

An attempt that nobody runs and that has left no record was interrupted: nobody has to write that down.
`harness run`, the leader of a job and `harness status` go by what is said here of running again.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace

from harness.core.errors import BadInput, HarnessError, Interrupted
from harness.core.paths import TrialFolder, remove_temporary_files
from harness.records.files import read_record, read_record_if_exists
from harness.records.record import PEER_FAILURES, Failure, Record

COMPLETE = ("done", "invalid")  # the status of trials that have got to their end
# How often a trial runs again after failures that say nothing about the trial itself, or may not.
RETRIES = {
    **dict.fromkeys(("Lost", "NodeFailure", "NotStarted", "ControllerDown", *PEER_FAILURES), 2),
    # Each takes minutes to be seen, and most come back.
    "Unresponsive": 1,
    "Hang": 1,
}
# Of one that saves at intervals, which resumes after failures too that may be its own.
RETRIES_OF_SAVED = {**RETRIES, "Killed": 2, "Exited": 2, "OutOfMemory": 2, "Hang": 2}


def begin_attempt(newest: TrialFolder, *, fresh: bool) -> TrialFolder:
    """Make the folder of a trial's next attempt.

    It goes on from the checkpoint of an attempt that did not get to its end. `fresh` removes what all
    attempts have left: killed meanwhile, the new one is there already, and the trial is not done. Raises
    HarnessError if somebody else has just begun it.
    """
    folder = replace(newest, attempt=newest.attempt + 1)
    try:
        folder.attempt_path.mkdir(parents=True)
    except FileExistsError:
        raise HarnessError(f"{folder.attempt_path}: another job has just begun it") from None
    is_complete = False
    with suppress(BadInput):  # what can't be read can't be told from an interruption
        record = read_record_if_exists(newest.record_path)
        is_complete = record is not None and record.status in COMPLETE
    paths = list(newest.attempt_path.glob("cache*"))  # of a compiler, by ranks that began with none
    if fresh or is_complete:
        paths += [folder.resume_checkpoints, folder.best_checkpoints, folder.export_folder]
    if fresh:
        for number in range(1, folder.attempt):
            paths.append(replace(folder, attempt=number).attempt_path)
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
    return folder


def end_attempt(folder: TrialFolder, record: Record) -> None:
    """Remove what only a running attempt needs, and what a trial that has this record does not.

    A process that is killed meanwhile leaves some of it, so this may be called again.
    """
    remove_temporary_files(folder.attempt_path)
    results = list(folder.attempt_path.glob("rank*.*"))
    results += [folder.progress_path, folder.failures_path]
    for path in results:
        path.unlink(missing_ok=True)
    caches = folder.attempt_path.glob("cache*")
    for path in (folder.heartbeat_folder, *caches):
        shutil.rmtree(path, ignore_errors=True)
    if record.status in COMPLETE:
        shutil.rmtree(folder.resume_checkpoints, ignore_errors=True)


def failures_before(folder: TrialFolder) -> list[Failure]:
    """Return why the attempts before this one did not count, the first one at the beginning."""
    failures = []
    for number in range(1, folder.attempt):
        earlier = replace(folder, attempt=number)
        failure = None
        with suppress(BadInput):  # of what can't be read, nothing is known
            if earlier.record_path.exists():
                failure = failure_of(read_record(earlier.record_path))
            elif earlier.assignment_path.exists():
                failure = _interruption(earlier)
        if failure is not None:
            failures.append(failure)
    return failures


def _interruption(folder: TrialFolder) -> Failure:
    """Return the failure of an attempt that has left no record."""
    # It ended with the last sign of life: a job may wait for long before it goes on.
    signs = [folder.assignment_path, folder.heartbeat_folder, folder.log_folder]
    began_at = folder.assignment_path.stat().st_mtime
    return Failure(
        kind=Interrupted.__name__,
        message="what ran it ended without leaving a record",
        at=max(path.stat().st_mtime for path in signs if path.exists()),
        began_at=began_at,
        attempt=folder.attempt,
    )


def failure_of(record: Record) -> Failure | None:
    """Return why an attempt does not count, None if it does."""
    failure = record.failure
    if record.status == "invalid":
        message = "; ".join(record.violations)
        failure = Failure(kind="Invalid", message=message, at=record.ended)
    if failure is None:
        return None
    return replace(failure, began_at=record.started, attempt=record.attempt)


def runs_again(record: Record, folder: TrialFolder, since: float, reruns: int) -> bool:
    """Return whether a trial runs again by itself; attempts that began before `since` do not count.

    An invalid one does `reruns` times. One that failed does as often as its kind of failure allows,
    counted since it was last saved at an interval: each time if it has saved since its last start.
    """
    last = failure_of(record)
    if last is None or record.status == "interrupted":
        return False
    retries = RETRIES
    is_script = record.trial.cell.workload.is_script
    settings = record.settings
    if record.status == "invalid":
        retries = {"Invalid": reruns}
    elif settings is not None and settings.saves_at_intervals and not is_script:
        retries, since = RETRIES_OF_SAVED, max(since, last_saved_at(folder))
    count = 0
    for failure in (*record.previous_failures, last):
        began_at = failure.began_at or 0.0
        count += failure.kind == last.kind and began_at >= since
    return last.kind in retries and count <= retries[last.kind]


def last_saved_at(folder: TrialFolder) -> float:
    """Return when a trial was last saved at an interval, in seconds since the epoch; 0 if never."""
    saved_at = [0.0]
    for path in folder.resume_checkpoints.glob("step-*"):
        with suppress(FileNotFoundError):  # a running attempt has just removed it
            saved_at.append(path.stat().st_mtime)
    return max(saved_at)
