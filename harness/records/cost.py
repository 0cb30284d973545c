"""What training costs: the time that ranks took, at the price of a rank's hour in the profile.

An epoch costs what its steps take at the throughput of the measured window. A goal costs the time
from the first step to the end of the evaluation that shows it, compilation and earlier evaluations
included, as MLPerf counts the time to train. A record keeps the price that its trial ran at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.records.bounds import Amount
from harness.records.record import Evaluation, Record
from harness.spec.price import parse_price

HOUR = 3600.0  # seconds


@dataclass(frozen=True, kw_only=True)
class TrialCost:
    """What a trial costs, of a profile that states a price."""

    currency: str
    per_second: Amount  # of all ranks together
    epoch: Amount | None  # None where throughput was not measured, and of a script


def trial_cost(record: Record) -> TrialCost | None:
    """Return what a trial costs, None where its profile states no price."""
    text = record.settings.profile.get("price_per_hour") if record.settings is not None else None
    if text is None:
        return None
    price = parse_price(text)
    per_second = price.amount * record.trial.cell.axes.world_size / HOUR
    seconds = epoch_seconds(record)
    epoch = None if seconds is None else seconds * per_second
    return TrialCost(currency=price.currency, per_second=per_second, epoch=epoch)


def epoch_seconds(record: Record) -> float | None:
    """Return the seconds that an epoch of steady steps takes, None where that is unknown.

    A script has no epochs that the harness knows of.
    """
    summary, report = record.summary, record.rank0
    if summary is None or report is None or record.trial.cell.workload.is_script:
        return None
    if not summary.throughput:
        return None
    samples = report.steps_per_epoch * record.trial.cell.axes.batch_size
    return samples / summary.throughput


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


def cost_per_epoch(record: Record) -> Mapping[str, float | None]:
    """Return what an epoch costs, by the currency in lower case."""
    cost = trial_cost(record)
    return {} if cost is None else {cost.currency.lower(): cost.epoch}


def cost_at_goal(record: Record) -> Mapping[str, float | None]:
    """Return what the goal of the rule for stopping cost, by the currency in lower case."""
    cost, seconds = trial_cost(record), seconds_to_goal(record)
    if cost is None or seconds is None:
        return {}
    return {cost.currency.lower(): seconds * cost.per_second}
