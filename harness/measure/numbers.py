"""Computes the numbers of a trial once, when its record is assembled; `harness.records.numbers` lists them.

What was not measured is absent: a failed trial has few numbers, and MLflow leaves its fields empty
rather than zero.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from harness.measure.window import Mask, Ranks, Window, step_seconds
from harness.records.numbers import RATES, best_name, final_name
from harness.records.record import Numbers, Rank0Report, RankResult, Record, Telemetry, mean_loss
from harness.sweep.cell import Cell

MIN_WINDOW_STEPS = 2  # fewer steps are no measurement
STRAGGLER_SKEW = 0.1  # share of their time that the other ranks wait, from which a rank is named
MEANS = (
    "cpu_steal", "load_per_core", "gpu_utilization", "gpu_sm_clock_mhz", "gpu_power_w",
    "gpu_throttled",
)  # fmt: skip
# What is taken of a rank's samples, and then of what the ranks measured, if not the largest.
STATISTICS: dict[str, Any] = {
    **dict.fromkeys(MEANS, np.nanmean),
    "gpu_sm_clock_lowest_mhz": np.nanmin,
}


def trial_numbers(record: Record, ranks: Ranks, window: Window | None) -> dict[str, float]:
    """Return the numbers of a trial by their names; `window` is that of a trial that finished."""
    numbers = _over_ranks(ranks)
    for phase, seconds in record.phases.items():
        numbers[f"phase_{phase}_s"] = seconds
    if record.interruptions:
        lost = [interruption.lost_seconds for interruption in record.interruptions]
        numbers["harness.interruptions"] = float(len(lost))
        numbers["harness.interruptions_lost_s"] = sum(lost)
    report = record.rank0
    if window is None or report is None:
        return numbers
    numbers |= _learned(report, ranks, was_interrupted=bool(record.interruptions))
    numbers |= _wall_time(record)
    if window.mask.sum() < MIN_WINDOW_STEPS:
        return numbers
    samples = samples_per_step(ranks, record.trial.cell)
    numbers |= _speed(ranks, window.mask, samples)
    numbers |= _phase_shares(ranks, window.phases)
    rate = numbers.get(RATES["samples/s"])
    if rate is not None and report.tokens_per_sample is not None:
        numbers["throughput_tokens_per_s"] = rate * report.tokens_per_sample
    if rate is not None and "gpu_power_w" in numbers:
        numbers["joules_per_sample"] = len(ranks) * numbers["gpu_power_w"] / rate
    return numbers


def samples_per_step(ranks: Ranks, cell: Cell) -> float | None:
    """Return the samples of a step of all ranks, None of a script that nobody counts them of.

    What a script gets as its batch size may be anything.
    """
    if not cell.workload.is_script:
        return cell.axes.batch_size
    total = sum(rank.samples_per_step or math.nan for rank in ranks)
    return None if math.isnan(total) else total


def slowest_rank_seconds(ranks: Ranks, mask: Mask) -> list[float]:
    """Return the seconds of the steps in `mask` of the rank that took longest.

    Throughput is counted over that rank's time.
    """
    seconds = step_seconds(ranks)[:, mask]
    slowest = seconds.sum(axis=1).argmax()
    return [float(of_step) for of_step in seconds[slowest]]


def straggler_notes(ranks: Ranks, window: Window | None) -> list[str]:
    """Return a line that names the slowest rank, none where the others hardly wait for it."""
    if window is None:
        return []
    rank, skew = _slowest_rank(ranks, window.phases)
    if skew is None or skew <= STRAGGLER_SKEW:
        return []
    waiting = f"straggler: the other ranks wait {skew:.0%} of their time for"
    return [f"{waiting} rank {rank.rank} on {rank.host}"]


def _speed(ranks: Ranks, mask: Mask, samples: float | None) -> dict[str, float]:
    """Return the throughput over the steps in `mask`, and their times.

    Throughput is their samples, or their number where samples are not known, divided by the time of
    the rank that took longest. A step takes as long as at its slowest rank.
    """
    seconds = step_seconds(ranks)[:, mask]
    count = seconds.shape[1]
    unit = RATES["steps/s"]
    if samples is not None:
        unit = RATES["samples/s"]
        count *= samples
    longest = seconds.sum(axis=1).max()
    numbers = {unit: float(count / longest)}
    of_steps = seconds.max(axis=0) * 1000
    for percent in (50, 90, 99):
        numbers[f"step_time_p{percent}_ms"] = float(np.percentile(of_steps, percent))
    return numbers


def _phase_shares(ranks: Ranks, mask: Mask) -> dict[str, float]:
    """Return the share of each phase in the steps in `mask`, of the time of all ranks together."""
    if not mask.any():
        return {}
    numbers = {"phase_steps": float(mask.sum())}
    total = step_seconds(ranks)[:, mask].sum()
    for name in ranks[0].step_phases:
        seconds = _phase_seconds(ranks, mask, name)
        numbers[f"{name}_share"] = float(seconds.sum() / total)
    _, skew = _slowest_rank(ranks, mask)
    if skew is not None:
        numbers["skew"] = skew
    return numbers


def _slowest_rank(ranks: Ranks, mask: Mask) -> tuple[RankResult, float | None]:
    """Return the rank that the others waited for, and the mean share of its time that another waited.

    Ranks wait for each other while they communicate, so all of them take equally long. The slowest is
    the one that spends the most time on anything else. The share is None of one rank, and where
    communication can't be told apart.
    """
    is_known = "communication" in ranks[0].step_phases and mask.any()
    if len(ranks) == 1 or not is_known:
        return ranks[0], None
    total = step_seconds(ranks)[:, mask].sum(axis=1)
    busy = total - _phase_seconds(ranks, mask, "communication")
    index = int(busy.argmax())
    waited = busy[index] - np.delete(busy, index).mean()
    return ranks[index], float(waited / total.max())


def _phase_seconds(ranks: Ranks, mask: Mask, name: str) -> Numbers:
    """Return the seconds of a phase in the steps in `mask`, shape (ranks,)."""
    series = [rank.step_phases[name][mask] for rank in ranks]
    return np.asarray(np.nansum(series, axis=1, dtype=np.float64))


def _learned(report: Rank0Report, ranks: Ranks, *, was_interrupted: bool) -> dict[str, float]:
    """Return the losses and metrics, and how long a trial with a rule for stopping took to them."""
    numbers = {}
    final_loss = float(mean_loss(ranks)[-1])
    if not math.isnan(final_loss):  # a script may not have reported it
        numbers["final_loss"] = final_loss
    best, target = report.best_evaluation, report.target.name
    if best is None:
        return numbers
    last = report.evaluations[-1]
    numbers[final_name(target)] = last.metrics[target]
    numbers[best_name(target)] = best.metrics[target]
    if report.stop is None:
        return numbers
    numbers["epochs"] = report.stop.step / report.steps_per_epoch
    numbers["epochs_to_best"] = best.step / report.steps_per_epoch
    if report.stop.reason == "goal" and not was_interrupted:  # what a pause cost is not known
        # From the start of training to the end of the last evaluation, as MLPerf counts them.
        ended_at = last.started_at + (last.seconds or 0.0)
        numbers["seconds_to_goal"] = ended_at - report.training_began_at
    return numbers


def _wall_time(record: Record) -> dict[str, float]:
    """Return the wall time of a trial, and its share that trained.

    Llama 3's report calls that effective training time (ETTR). Attempts before the trial began anew,
    as after an invalid one, do not count, nor do pauses between attempts.
    """
    wall = record.ended - record.started
    for failure in reversed(record.previous_failures):
        if failure.kind == "Invalid":  # the trial began anew
            break
        wall += failure.at - (failure.began_at or failure.at)
    # Each phase is that of the rank that was in it longest.
    trained = record.phases.get("warmup", 0.0) + record.phases.get("train", 0.0)
    return {"wall_s": wall, "ettr": min(1.0, trained / wall)}


def _over_ranks(ranks: Ranks) -> dict[str, float]:
    """Return what each rank measures for itself: the mean, or the largest of what costs or disturbs.

    Absent unless every rank has it: the unknown one might be the largest.
    """
    of_ranks = [rank.numbers | telemetry_numbers(rank.telemetry) for rank in ranks]
    numbers = {}
    for name in of_ranks[0] if of_ranks else ():
        values = [of_rank[name] for of_rank in of_ranks if name in of_rank]
        if len(values) == len(ranks):
            numbers[name] = _statistic(name, values)
    return numbers


def telemetry_numbers(telemetry: Telemetry) -> dict[str, float]:
    """Return the numbers of the telemetry of a rank."""
    numbers = {name: _statistic(name, values) for name, values in telemetry.readings.items()}
    if "cpu_steal" in telemetry.shares:
        numbers["cpu_steal"] = telemetry.shares["cpu_steal"]
    clock = telemetry.readings.get("gpu_sm_clock_mhz")
    if clock is not None:
        numbers["gpu_sm_clock_lowest_mhz"] = float(np.nanmin(clock))
        numbers["gpu_sm_clock_highest_mhz"] = float(np.nanmax(clock))
    return numbers


def _statistic(name: str, values: Any) -> float:
    """Return what is taken of several values of a number; NaN stands for what could not be read."""
    return float(STATISTICS.get(name, np.nanmax)(values))
