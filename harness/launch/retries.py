"""Says after which failures a trial runs again, and how often.

`harness run`, the leader of a job and `harness status`, which says what a job will do, go by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from harness.core.paths import TrialFolder
from harness.records.record import PEER_FAILURES, Failure, Record
from harness.records.settings import saves_at_intervals

RETRIES = 2  # of a trial that was lost without being the cause
# Failures that say nothing about the trial itself.
RETRIED_FAILURES = {
    "Lost",
    "NodeFailure",
    "NotStarted",
    "ControllerDown",
    "Unresponsive",
    *PEER_FAILURES,
}
# Failures that may be the trial's own, after which one that saves at intervals resumes.
RESUMED_FAILURES = {"Killed", "OutOfMemory", "Hang"}


def retried_kinds(record: Record, kinds: Collection[str]) -> Collection[str]:
    """Return the failures after which a trial runs again, where `kinds` are those of any trial."""
    return {*kinds, *RESUMED_FAILURES} if saves_at_intervals(record) else kinds


def last_saved_at(record: Record, folder: TrialFolder) -> float:
    """Return when a trial was last saved at an interval, in seconds since the epoch; 0 if never."""
    if not saves_at_intervals(record):
        return 0.0
    saved_at = [path.stat().st_mtime for path in folder.resume_checkpoints.glob("step-*")]
    return max(saved_at, default=0.0)


def count_without_save(failures: Iterable[Failure], kinds: Collection[str], saved_at: float) -> int:
    """Return how many failures of these kinds have come since a trial was last saved.

    After a save the next attempt has less to do, so that it repeats none of those before it.
    """
    count = 0
    for failure in failures:
        is_before_save = failure.began_at is not None and failure.began_at < saved_at
        count += failure.kind in kinds and not is_before_save
    return count
