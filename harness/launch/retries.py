"""Says after which failures a trial runs again, and how often.

`harness run`, the leader of a job and `harness show`, which says what a job will do, go by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from harness.core.paths import TrialFolder
from harness.launch.attempts import failure_of
from harness.records.record import PEER_FAILURES, Failure, Record

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
# Of one that saves at intervals, which resumes after failures too that may be its own.
RETRIES_OF_SAVED = {**RETRIES, "Killed": 2, "OutOfMemory": 2, "Hang": 2}


def runs_again(record: Record, folder: TrialFolder, since: float, reruns: int) -> bool:
    """Return whether a trial runs again by itself; attempts that began before `since` do not count.

    An invalid one does `reruns` times. One that failed does as often as its kind of failure allows,
    counted since it was last saved at an interval: each time if it has saved since its last start.
    """
    last = failure_of(record)
    if last is None or record.status == "interrupted":
        return False
    failures = [*record.previous_failures, last]
    if record.status == "invalid":
        return _count(failures, since) <= reruns
    is_script, settings = record.trial.cell.workload.is_script, record.settings
    if settings is not None and settings.saves_at_intervals and not is_script:
        return is_retried(failures, max(since, last_saved_at(folder)), RETRIES_OF_SAVED)
    return is_retried(failures, since, RETRIES)


def is_retried(failures: Sequence[Failure], since: float, retries: Mapping[str, int]) -> bool:
    """Return whether a trial runs again that failed like this since a time, the last failure at the end."""
    kind = failures[-1].kind
    return kind in retries and _count(failures, since) <= retries[kind]


def last_saved_at(folder: TrialFolder) -> float:
    """Return when a trial was last saved at an interval, in seconds since the epoch; 0 if never."""
    saved_at = [0.0]
    for path in folder.resume_checkpoints.glob("step-*"):
        with suppress(FileNotFoundError):  # a running attempt has just removed it
            saved_at.append(path.stat().st_mtime)
    return max(saved_at)


def _count(failures: Sequence[Failure], since: float) -> int:
    """Return how many attempts failed like the last one that began at a time or after it."""
    count = 0
    for failure in failures:
        count += failure.kind == failures[-1].kind and (failure.began_at or 0.0) >= since
    return count
