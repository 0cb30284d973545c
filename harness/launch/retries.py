"""Says after which failures a trial runs again, and how often.

`harness run`, the leader of a job and `harness show`, which says what a job will do, go by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from harness.core.paths import TrialFolder
from harness.records.record import PEER_FAILURES, Failure, Record
from harness.records.settings import saves_at_intervals

# How often a trial runs again after failures that say nothing about the trial itself, or may not.
RETRIES = {
    "Lost": 2,
    "NodeFailure": 2,
    "NotStarted": 2,
    "ControllerDown": 2,
    **dict.fromkeys(PEER_FAILURES, 2),
    # Each takes minutes to be seen, and most come back.
    "Unresponsive": 1,
    "Hang": 1,
}
# Failures that may be the trial's own, after which one that saves at intervals resumes.
RESUMES = {"Killed": 2, "OutOfMemory": 2, "Hang": 2}


def runs_again(record: Record, folder: TrialFolder, first_attempt: int, reruns: int) -> bool:
    """Return whether a trial runs again by itself, its attempts counted from `first_attempt` on.

    An invalid one does `reruns` times. One that failed does as often as its kind of failure allows,
    counted since it was last saved at an interval: each time if it has saved since its last start.
    """
    if record.status == "invalid":
        return _count(record.previous_failures, "Invalid", first_attempt, 0.0) < reruns
    saves = saves_at_intervals(record)
    saved_at = last_saved_at(folder) if saves else 0.0
    return record.status == "failed" and is_retried(
        failures_of(record), first_attempt, saves=saves, saved_at=saved_at
    )


def is_retried(
    failures: Sequence[Failure], first_attempt: int, *, saves: bool, saved_at: float
) -> bool:
    """Return whether a trial runs again that failed like this, the last failure at the end.

    `saves` says whether it saves at intervals, and `saved_at` when it did last, since the epoch.
    """
    kind = failures[-1].kind if failures else ""
    allowed = RETRIES.get(kind, 0)
    if saves:
        allowed = max(allowed, RESUMES.get(kind, 0))
    return allowed > 0 and _count(failures, kind, first_attempt, saved_at) <= allowed


def failures_of(record: Record) -> list[Failure]:
    """Return why the attempts of a trial failed, the last one at the end."""
    failures = list(record.previous_failures)
    if record.failure is not None:
        failures.append(replace(record.failure, began_at=record.started, attempt=record.attempt))
    return failures


def last_saved_at(folder: TrialFolder) -> float:
    """Return when a trial was last saved at an interval, in seconds since the epoch; 0 if never."""
    saved_at = [0.0]
    for path in folder.resume_checkpoints.glob("step-*"):
        with suppress(FileNotFoundError):  # a running attempt has just removed it
            saved_at.append(path.stat().st_mtime)
    return max(saved_at)


def _count(failures: Sequence[Failure], kind: str, first_attempt: int, saved_at: float) -> int:
    """Return how many attempts from `first_attempt` on failed like this and began after a save."""
    count = 0
    for failure in failures:
        is_counted = (failure.attempt or 0) >= first_attempt and (
            failure.began_at or 0.0
        ) >= saved_at
        count += is_counted and failure.kind == kind
    return count
