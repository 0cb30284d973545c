"""Says after which failures a trial runs again, and how often.

`harness run`, the leader of a job and `harness show`, which says what a job will do, go by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from harness.core.paths import TrialFolder
from harness.launch.attempts import failure_of
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


def runs_again(record: Record, folder: TrialFolder, since: float, reruns: int) -> bool:
    """Return whether a trial runs again by itself; attempts that began before `since` do not count.

    An invalid one does `reruns` times. One that failed does as often as its kind of failure allows,
    counted since it was last saved at an interval: each time if it has saved since its last start.
    """
    failures = failures_of(record)
    if record.status == "invalid":
        return _count(failures, "Invalid", since) <= reruns
    saves = saves_at_intervals(record)
    saved_at = last_saved_at(folder) if saves else 0.0
    return record.status == "failed" and is_retried(failures, since, saves=saves, saved_at=saved_at)


def is_retried(failures: Sequence[Failure], since: float, *, saves: bool, saved_at: float) -> bool:
    """Return whether a trial runs again that failed like this, the last failure at the end.

    `saves` says whether it saves at intervals, and `saved_at` when it did last, since the epoch.
    """
    kind = failures[-1].kind if failures else ""
    allowed = RETRIES.get(kind, 0)
    if saves:
        allowed = max(allowed, RESUMES.get(kind, 0))
    return allowed > 0 and _count(failures, kind, max(since, saved_at)) <= allowed


def failures_of(record: Record) -> list[Failure]:
    """Return why the attempts of a trial did not count, the last one at the end."""
    failures = list(record.previous_failures)
    last = failure_of(record)
    if last is not None:
        failures.append(last)
    return failures


def last_saved_at(folder: TrialFolder) -> float:
    """Return when a trial was last saved at an interval, in seconds since the epoch; 0 if never."""
    saved_at = [0.0]
    for path in folder.resume_checkpoints.glob("step-*"):
        with suppress(FileNotFoundError):  # a running attempt has just removed it
            saved_at.append(path.stat().st_mtime)
    return max(saved_at)


def _count(failures: Sequence[Failure], kind: str, since: float) -> int:
    """Return how many attempts failed like this that began at a time or after it."""
    count = 0
    for failure in failures:
        count += failure.kind == kind and (failure.began_at or 0.0) >= since
    return count
