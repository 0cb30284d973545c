"""Says how much of a trial's wall time trained.

The share is what Llama 3's report calls effective training time, and others goodput or ETTR. The wall
time is that of all attempts, so that what was lost to deaths counts, and pauses between attempts do
not: in the queue, or because a user has stopped the sweep.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.records.record import Record

TRAINING_PHASES = ("warmup", "train", "fingerprint")  # the last one of steps that leave digests


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """The wall time of the attempts of trials, in seconds."""

    trained: float  # steps that the result rests on, those of the warm-up included
    wall: float

    @property
    def share(self) -> float:
        """Return the share that trained."""
        return self.trained / self.wall if self.wall else 0.0


def goodput(record: Record) -> Goodput | None:
    """Return how much of a trial's attempts trained, None unless it has come to its end.

    Attempts before the trial began anew, as after an invalid one, do not count.
    """
    if record.summary is None:
        return None
    first_started = record.first_started or record.started
    wall = record.ended - record.started
    for failure in record.previous_failures:
        if failure.began_at is not None and failure.at > first_started:
            wall += max(0.0, failure.at - failure.began_at)
    # Each phase is that of the rank that was in it longest.
    trained = sum(record.phases.get(name, 0.0) for name in TRAINING_PHASES)
    return Goodput(trained=min(trained, wall), wall=wall)


def whole_seconds(record: Record) -> float:
    """Return the seconds that a trial takes which is not interrupted.

    One that was is as long as its phases, which are those of all attempts.
    """
    if record.ranks.across.interruptions:
        return sum(record.phases.values())
    return record.ended - record.started


def total(trials: Iterable[Goodput]) -> Goodput | None:
    """Return the wall time of several trials together, None for none."""
    listed = list(trials)
    if not listed:
        return None
    return Goodput(
        trained=sum(trial.trained for trial in listed), wall=sum(trial.wall for trial in listed)
    )
