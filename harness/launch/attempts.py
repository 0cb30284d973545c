"""The attempts at a trial: each is one start of its ranks, with a folder that no other attempt changes.

An attempt that nobody runs and that has left no record was interrupted: nobody has to write that down.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from harness.core.errors import BadInput, HarnessError
from harness.core.paths import TrialFolder
from harness.records.files import read_record, read_record_if_exists
from harness.records.record import Failure, Record
from harness.records.running import read_heartbeats

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
    is_anew = fresh
    with suppress(BadInput):  # what can't be read can't be told from an interruption
        record = read_record_if_exists(newest.record_path)
        is_anew = is_anew or (record is not None and record.status in COMPLETE)
    if is_anew:
        trial_wide = [folder.resume_checkpoints, folder.best_checkpoints, folder.fingerprint_folder]
        for path in [*trial_wide, folder.export_folder]:
            shutil.rmtree(path, ignore_errors=True)
    if fresh:
        for attempt in range(1, folder.attempt):
            shutil.rmtree(replace(folder, attempt=attempt).attempt_path, ignore_errors=True)
    return folder


def end_attempt(folder: TrialFolder, record: Record) -> None:
    """Remove what only a running attempt needs, and what a trial that has this record does not."""
    results = [*folder.attempt_path.glob("rank*.json"), *folder.attempt_path.glob("rank*.npz")]
    for path in [folder.progress_path, folder.failures_path, *results]:
        path.unlink(missing_ok=True)
    for path in [folder.heartbeat_folder, *folder.attempt_path.glob("cache*")]:
        shutil.rmtree(path, ignore_errors=True)
    remove_unneeded_checkpoints(folder, record)


def remove_unneeded_checkpoints(folder: TrialFolder, record: Record) -> None:
    """Remove the checkpoints that a trial resumes from, once it has come to its end."""
    if record.status in COMPLETE:
        shutil.rmtree(folder.resume_checkpoints, ignore_errors=True)


def failures_before(folder: TrialFolder) -> list[Failure]:
    """Return why the attempts before this one did not count, the first one at the beginning."""
    failures = []
    for attempt in range(1, folder.attempt):
        with suppress(BadInput):  # of what can't be read, nothing is known
            failure = _failure_of(replace(folder, attempt=attempt))
            if failure is not None:
                failures.append(failure)
    return failures


def _failure_of(folder: TrialFolder) -> Failure | None:
    """Return why an attempt does not count, None if it does; raises BadInput."""
    if not folder.assignment_path.exists():
        return None
    if folder.record_path.exists():
        return failure_of(read_record(folder.record_path))
    began_at = folder.assignment_path.stat().st_mtime
    # It ended with the last sign of life: a job may wait for long before it goes on.
    ended_at = max([began_at, *(beat.at for beat in read_heartbeats(folder.heartbeat_folder))])
    message = "what ran it ended without leaving a record"
    return Failure(
        kind="Interrupted",
        message=message,
        at=ended_at,
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


def continued_since(failures: Sequence[Failure]) -> float | None:
    """Return when the first of the attempts began that the one after these failures continues."""
    since = None
    for failure in failures:
        since = since or failure.began_at
        if failure.kind == "Invalid":  # it was only measured again
            since = None
    return since
