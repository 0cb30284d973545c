"""How long trials with a rule for stopping trained: epochs, until their best, and until the goal.

Such trials have different lengths. That changes no throughput, which is samples/s of the steady steps
however many there are; and a target metric is that of the parameters that a trial ended with, so that
a verdict on it compares what the rules led to.
"""

from __future__ import annotations

from harness.records.record import Record


def epochs_trained(record: Record) -> float | None:
    """Return the epochs that a trial trained, None without a rule for stopping."""
    if record.rank0 is None or record.rank0.stop is None:
        return None
    return record.rank0.stop.step / record.rank0.steps_per_epoch


def epochs_to_best(record: Record) -> float | None:
    """Return the epochs until the best evaluation, None without a rule for stopping."""
    if record.rank0 is None or record.rank0.stop is None:
        return None
    best = record.rank0.best_evaluation
    return None if best is None else best.epoch


def epochs_to_goal(record: Record) -> float | None:
    """Return the epochs until the goal of the rule for stopping, None if it was not reached."""
    if record.rank0 is None or record.rank0.stop is None or record.rank0.stop.reason != "goal":
        return None
    return epochs_trained(record)
