"""The seconds of training until an evaluation, compilation and earlier evaluations included, as MLPerf counts them."""

from __future__ import annotations

from harness.records.record import Evaluation, Record


def seconds_until(record: Record, evaluation: Evaluation) -> float | None:
    """Return the seconds from the start of training to the end of an evaluation, more than 0.

    None of a trial that was interrupted, as what its pause cost is not known, of one that failed, and
    of an evaluation before training, which a script may have.
    """
    if record.summary is None or record.rank0 is None or record.ranks.across.interruptions:
        return None
    ended_at = evaluation.started_at + (evaluation.seconds or 0.0)
    seconds = ended_at - record.rank0.training_began_at
    return seconds if seconds > 0 else None


def seconds_to_goal(record: Record) -> float | None:
    """Return the seconds until the goal of the rule for stopping, None if it was not reached."""
    if record.rank0 is None or record.rank0.stop is None or record.rank0.stop.reason != "goal":
        return None
    for evaluation in record.rank0.evaluations:
        if evaluation.step == record.rank0.stop.step:
            return seconds_until(record, evaluation)
    return None
