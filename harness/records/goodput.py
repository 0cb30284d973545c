"""Says how much of a trial's wall time trained, and where the rest went.

The share is what Llama 3's report calls effective training time, and others goodput or ETTR. It goes
from the start of the first attempt to the end of the last one, so what was lost to deaths counts. A
job's time in the queue is added to its first trial.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from harness.records.record import Record

TRAINING_PHASES = ("warmup", "train", "fingerprint")  # the last one of steps that leave digests
STARTING_PHASES = ("startup", "data", "build", "cool_down", "loader")


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """The wall time of trials in seconds, each second in one place."""

    trained: float  # steps that the result rests on, those of the warm-up included
    start: float  # from the launch of ranks to their first step, with data, model and cool-down
    compile: float
    evaluate: float
    checkpoint: float  # that training stood still for
    again: float  # work after the last checkpoint before a death, which was done twice
    # No rank was in any of these: in the queue between attempts, launching, ending.
    waiting: float
    queue: float = 0.0  # that its job was pending before it started

    @property
    def wall(self) -> float:
        """Return all of it."""
        seconds: float = sum(vars(self).values())
        return seconds

    @property
    def share(self) -> float:
        """Return the share that trained."""
        return self.trained / self.wall if self.wall else 0.0


def goodput(record: Record) -> Goodput | None:
    """Return where the wall time of a trial went, None unless it has come to its end.

    What no phase and no death explains is `waiting`, so that all parts make up the wall time.
    """
    if record.summary is None:
        return None
    wall = record.ended - (record.first_started or record.started)
    trained = sum(record.phases.get(name, 0.0) for name in TRAINING_PHASES)
    start = sum(record.phases.get(name, 0.0) for name in STARTING_PHASES)
    explained = {
        name: record.phases.get(name, 0.0) for name in ("compile", "evaluate", "checkpoint")
    }
    again = min(work_done_twice(record), max(0.0, wall - trained))
    known = trained + start + sum(explained.values()) + again
    return Goodput(
        trained=trained,
        start=start,
        again=again,
        waiting=max(0.0, wall - known),
        queue=record.queued_seconds or 0.0,
        **explained,
    )


def work_done_twice(record: Record) -> float:
    """Return the seconds of work that deaths have cost, over all of them.

    That is from the save that a later attempt went on from to the death after it, or the whole attempt
    where none did. Who is told to stop saves first, and loses nothing. Attempts before the trial began
    anew, as after an invalid one, do not count.
    """
    first_started = record.first_started or record.started
    failures = [failure for failure in record.previous_failures if failure.at > first_started]
    if not failures:
        return 0.0
    failures.sort(key=lambda failure: failure.at)
    began: list[float] = []
    ended = first_started
    for failure in failures:
        began.append(ended if failure.began_at is None else failure.began_at)
        ended = failure.at
    seconds = 0.0
    # A save may be later than the last sign of life that dates a death, but not than the next attempt.
    spans = pairwise([*began, record.started])
    for failure, (start, next_start) in zip(failures, spans, strict=True):
        saves = [
            resumed
            for resumed in record.ranks.across.interruptions
            if start <= resumed.at < next_start
        ]
        if not saves:
            seconds += max(0.0, failure.at - start)
        elif saves[-1].signal is None:
            seconds += max(0.0, failure.at - saves[-1].at)
    return seconds


def whole_seconds(record: Record) -> float:
    """Return the seconds that a trial takes which is not interrupted.

    One that was is as long as its phases, which are those of all attempts.
    """
    if record.ranks.across.interruptions:
        return sum(record.phases.values())
    return record.ended - record.started


def total(trials: Iterable[Goodput]) -> Goodput | None:
    """Return where the wall time of several trials went, None for none."""
    sums: dict[str, float] = {}
    for trial in trials:
        for name, seconds in vars(trial).items():
            sums[name] = sums.get(name, 0.0) + seconds
    return Goodput(**sums) if sums else None
