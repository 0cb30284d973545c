"""The attempts at a trial: each is one start of its ranks, with a folder that no other attempt changes.

An attempt that nobody runs and that has left no record was interrupted: nobody has to write that down.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace

from harness.core.errors import BadInput, HarnessError
from harness.core.paths import TrialFolder
from harness.records.files import read_record, read_record_if_exists
from harness.records.record import Failure, Record

COMPLETE = ("done", "invalid")  # the status of trials that have got to their end


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
    _remove_caches(newest)
    is_anew = fresh
    with suppress(BadInput):  # what can't be read can't be told from an interruption
        record = read_record_if_exists(newest.record_path)
        is_anew = fresh or (record is not None and record.status in COMPLETE)
    paths = []
    if is_anew:
        paths += [folder.resume_checkpoints, folder.best_checkpoints, folder.export_folder]
    if fresh:
        paths += [replace(folder, attempt=n).attempt_path for n in range(1, folder.attempt)]
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
    return folder


def end_attempt(folder: TrialFolder, record: Record) -> None:
    """Remove what only a running attempt needs, and what a trial that has this record does not."""
    results = folder.attempt_path.glob("rank*.*")
    for path in [folder.progress_path, folder.failures_path, *results]:
        path.unlink(missing_ok=True)
    shutil.rmtree(folder.heartbeat_folder, ignore_errors=True)
    _remove_caches(folder)
    remove_unneeded_checkpoints(folder, record)


def _remove_caches(folder: TrialFolder) -> None:
    """Remove the compiler's caches of ranks that began with none."""
    for path in folder.attempt_path.glob("cache*"):
        shutil.rmtree(path, ignore_errors=True)


def remove_unneeded_checkpoints(folder: TrialFolder, record: Record) -> None:
    """Remove the checkpoints that a trial resumes from, once it has come to its end."""
    if record.status in COMPLETE:
        shutil.rmtree(folder.resume_checkpoints, ignore_errors=True)


def failures_before(folder: TrialFolder) -> list[Failure]:
    """Return why the attempts before this one did not count, the first one at the beginning."""
    failures = []
    for attempt in range(1, folder.attempt):
        earlier = replace(folder, attempt=attempt)
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
    paths = [
        folder.assignment_path,
        *folder.heartbeat_folder.glob("*"),
        *folder.log_folder.glob("*"),
    ]
    return Failure(
        kind="Interrupted",
        message="what ran it ended without leaving a record",
        at=max(path.stat().st_mtime for path in paths),
        began_at=folder.assignment_path.stat().st_mtime,
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
