"""Computes the numbers of a trial once, when its record is assembled; `harness.records.numbers` lists them.

What was not measured is absent: a failed trial has few numbers, and MLflow leaves its fields empty
rather than zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.measure.window import Window, step_seconds
from harness.records.numbers import RATES, best_name, final_name
from harness.records.record import (
    THROTTLED_SHARE,
    Rank0Report,
    RankResult,
    Record,
    Telemetry,
    mean_loss,
)
from harness.sweep.cell import Cell

MIB = 2**20
MIN_WINDOW_STEPS = 2  # fewer steps are no measurement
PERCENTILES = (50, 90, 99)  # of the time of a step
STRAGGLER_SKEW = 0.1  # share of their time that the other ranks wait, from which a rank is named
TRAINING_PHASES = ("warmup", "train")
# The numbers that come from a reading: its name, what it is divided by, and what is taken of its values at a
# rank, and again of the ranks.
READINGS: Mapping[str, tuple[str, float, Callable[[Any], Any]]] = {
    "gpu_utilization": ("gpu_utilization", 1, np.mean),
    "gpu_memory_mib": ("gpu_memory_bytes", MIB, np.mean),
    "gpu_temperature_c": ("gpu_temperature_c", 1, np.mean),
    "gpu_sm_clock_mhz": ("gpu_sm_clock_hz", 1e6, np.mean),
    "gpu_sm_clock_lowest_mhz": ("gpu_sm_clock_hz", 1e6, np.min),
    "gpu_sm_clock_highest_mhz": ("gpu_sm_clock_hz", 1e6, np.max),
    "gpu_power_w": ("gpu_power_w", 1, np.mean),
    "cpu_frequency_mhz": ("cpu_frequency_hz", 1e6, np.mean),
    "load_per_core": ("load_per_core", 1, np.mean),
}
SHARES = ("cpu_use", "cpu_steal", "process_cpu")
JOULES = "joules per step"  # of a rank's GPU, and then of all
# What is taken of the numbers that ranks measure for themselves, if not the largest.
STATISTICS: dict[str, Callable[[Any], Any]] = {JOULES: np.sum, **dict.fromkeys(SHARES, np.mean)}
STATISTICS |= {name: statistic for name, (_, _, statistic) in READINGS.items()}


def trial_numbers(
    record: Record, ranks: Sequence[RankResult], window: Window | None
) -> dict[str, float]:
    """Return the numbers of a trial by their names; `window` is that of a trial that finished."""
    numbers = _over_ranks(ranks)
    joules = numbers.pop(JOULES, None)
    for phase, seconds in record.phases.items():
        numbers[f"phase_{phase}_s"] = seconds
    if record.interruptions:
        lost = [interruption.lost_seconds for interruption in record.interruptions]
        numbers["harness.interruptions"] = len(lost)
        numbers["harness.interruptions_lost_s"] = sum(lost)
    if window is not None and record.rank0 is not None:
        numbers |= _learned(record, record.rank0, ranks)
        numbers |= _wall_time(record)
        samples = samples_per_step(ranks, record.trial.cell)
        if window.mask.sum() >= MIN_WINDOW_STEPS:
            numbers |= _speed(ranks, window.mask, samples)
            numbers |= _phase_shares(ranks, window.phases)
        rate, tokens = numbers.get(RATES["samples/s"]), record.rank0.tokens_per_sample
        if rate is not None and tokens is not None:
            numbers["throughput_tokens_per_s"] = rate * tokens
        if joules is not None and samples is not None:
            numbers["joules_per_sample"] = joules / samples
    return {name: float(number) for name, number in numbers.items()}


def samples_per_step(ranks: Sequence[RankResult], cell: Cell) -> float | None:
    """Return the samples of a step of all ranks, None of a script that nobody counts them of.

    What a script gets as its batch size may be anything.
    """
    counted = [rank.samples_per_step for rank in ranks if rank.samples_per_step is not None]
    if len(counted) == len(ranks) and any(counted):
        return sum(counted)
    if cell.workload.is_script:
        return None
    return cell.axes.batch_size


def slowest_rank_seconds(ranks: Sequence[RankResult], mask: NDArray[np.bool_]) -> list[float]:
    """Return the seconds of the steps in `mask` of the rank that took longest.

    Throughput is counted over that rank's time.
    """
    seconds = step_seconds(ranks)[:, mask]
    slowest: list[float] = seconds[seconds.sum(axis=1).argmax()].tolist()
    return slowest


def straggler_notes(ranks: Sequence[RankResult], window: Window | None) -> list[str]:
    """Return a line that names the slowest rank, none where the others hardly wait for it."""
    if window is None:
        return []
    slowest, skew = _slowest_rank(ranks, window.phases)
    if slowest is None or skew <= STRAGGLER_SKEW:
        return []
    return [
        f"straggler: the other ranks wait {skew:.0%} of their time for"
        f" rank {slowest.rank} on {slowest.host}"
    ]


def _speed(
    ranks: Sequence[RankResult], mask: NDArray[np.bool_], samples: float | None
) -> dict[str, float]:
    """Return the throughput over the steps in `mask`, and their times.

    Throughput is their samples, or their number where samples are not known, divided by the time of
    the rank that took longest. A step takes as long as at its slowest rank.
    """
    seconds = step_seconds(ranks)[:, mask]
    steps = int(mask.sum())
    longest = float(seconds.sum(axis=1).max())
    numbers = {}
    if samples is None:
        numbers[RATES["steps/s"]] = steps / longest
    else:
        numbers[RATES["samples/s"]] = steps * samples / longest
    percentiles = np.percentile(seconds.max(axis=0), PERCENTILES).tolist()
    for percent, step_time in zip(PERCENTILES, percentiles, strict=True):
        numbers[f"step_time_p{percent}_ms"] = step_time * 1000
    return numbers


def _phase_shares(ranks: Sequence[RankResult], mask: NDArray[np.bool_]) -> dict[str, float]:
    """Return the share of each phase in the steps in `mask`, of the time of all ranks together."""
    numbers: dict[str, float] = {}
    if not mask.any():
        return numbers
    numbers["phase_steps"] = int(mask.sum())
    total = step_seconds(ranks)[:, mask].sum()
    for name in ranks[0].step_phases:
        numbers[f"{name}_share"] = float(_phase_seconds(ranks, mask, name).sum() / total)
    slowest, skew = _slowest_rank(ranks, mask)
    if slowest is not None:
        numbers["skew"] = skew
    return numbers


def _slowest_rank(
    ranks: Sequence[RankResult], mask: NDArray[np.bool_]
) -> tuple[RankResult | None, float]:
    """Return the rank that the others waited for, and the mean share of its time that another waited.

    Ranks wait for each other while they communicate, so all of them take equally long. The slowest is
    the one that spends the most time on anything else. None of one rank, and where communication can't
    be told apart.
    """
    if len(ranks) == 1 or "communication" not in ranks[0].step_phases or not mask.any():
        return None, 0.0
    total = step_seconds(ranks)[:, mask].sum(axis=1)
    busy = total - _phase_seconds(ranks, mask, "communication")
    index = int(busy.argmax())
    waited = busy[index] - np.delete(busy, index).mean()
    return ranks[index], float(waited / total.max())


def _phase_seconds(
    ranks: Sequence[RankResult], mask: NDArray[np.bool_], name: str
) -> NDArray[np.float64]:
    """Return the seconds of a phase in the steps in `mask`, shape (ranks,)."""
    series = [rank.step_phases[name][mask] for rank in ranks]
    seconds: NDArray[np.float64] = np.nansum(series, axis=1, dtype=np.float64)
    return seconds


def _learned(record: Record, report: Rank0Report, ranks: Sequence[RankResult]) -> dict[str, float]:
    """Return the losses and metrics, and how long a trial with a rule for stopping took to them."""
    numbers: dict[str, float] = {}
    for loss in mean_loss(ranks)[-1:].tolist():
        if not math.isnan(loss):  # a script may not have reported it
            numbers["final_loss"] = loss
    best, target = report.best_evaluation, report.target.name
    if best is None:
        return numbers
    numbers[final_name(target)] = report.evaluations[-1].metrics[target]
    numbers[best_name(target)] = best.metrics[target]
    if report.stop is None:
        return numbers
    numbers["epochs"] = report.stop.step / report.steps_per_epoch
    numbers["epochs_to_best"] = best.epoch
    if report.stop.reason != "goal":
        return numbers
    numbers["epochs_to_goal"] = numbers["epochs"]
    if not record.interruptions:  # what the pause of one cost is not known
        # From the start of training to the end of the last evaluation, as MLPerf counts them.
        last = report.evaluations[-1]
        ended_at = last.started_at + (last.seconds or 0.0)
        numbers["seconds_to_goal"] = ended_at - report.training_began_at
    return numbers


def _wall_time(record: Record) -> dict[str, float]:
    """Return the wall time of a trial, and its share that trained.

    Llama 3's report calls that effective training time (ETTR). Attempts before the trial began anew,
    as after an invalid one, do not count, nor do pauses between attempts.
    """
    wall = 0.0
    for failure in record.previous_failures:
        if failure.kind == "Invalid":  # the trial began anew
            wall = 0.0
        elif failure.began_at is not None:
            wall += max(0.0, failure.at - failure.began_at)
    wall += record.ended - record.started
    # Each phase is that of the rank that was in it longest.
    trained = sum(record.phases.get(name, 0.0) for name in TRAINING_PHASES)
    share = min(trained, wall) / wall if wall else 0.0
    return {"wall_s": wall, "ettr": share}


def _over_ranks(ranks: Sequence[RankResult]) -> dict[str, float]:
    """Return what each rank measures for itself: the mean, or the largest of what costs or disturbs.

    Absent unless every rank has it: the unknown one might be the largest.
    """
    numbers: dict[str, float] = {}
    if not ranks:
        return numbers
    of_ranks = list(map(_of_rank, ranks))
    for name in of_ranks[0]:
        values = [of_rank[name] for of_rank in of_ranks if name in of_rank]
        if len(values) == len(ranks):
            numbers[name] = float(STATISTICS.get(name, np.max)(values))
    return numbers


def _of_rank(rank: RankResult) -> dict[str, float]:
    """Return the memory of a rank, what torch.compile and loss scaling did there, and its telemetry."""
    numbers: dict[str, float] = {}
    for kind, size in rank.memory.items():
        numbers[f"memory_{kind}_mib"] = size / MIB
    if rank.compiled is not None:  # by each rank for itself, and only some may meet a graph break
        numbers["compile_graphs"] = rank.compiled.graphs
        numbers["compile_graph_breaks"] = sum(rank.compiled.graph_breaks.values())
        numbers["compile_recompiles"] = rank.compiled.recompiles
    if rank.loss_scale is not None:
        numbers["loss_scale"] = rank.loss_scale.scale
        numbers["loss_scale_skipped_steps"] = rank.loss_scale.skipped_steps
    if rank.telemetry is not None:
        numbers |= _telemetry(rank.telemetry)
    return numbers


def _telemetry(telemetry: Telemetry) -> dict[str, float]:
    """Return the numbers of the telemetry of a rank; NaN stands for what could not be read."""
    numbers: dict[str, float] = {}
    for name, (reading, unit, statistic) in READINGS.items():
        values = telemetry.readings.get(reading, np.empty(0))
        values = values[np.isfinite(values)].astype(np.float64)
        if values.size:
            numbers[name] = float(statistic(values)) / unit
    for name, share in telemetry.shares.items():
        if name in SHARES or name.startswith(THROTTLED_SHARE):
            numbers[name] = share
    if telemetry.foreign_processes is not None:
        numbers["gpu_foreign_processes"] = len(telemetry.foreign_processes)
    if telemetry.joules is not None:
        numbers[JOULES] = telemetry.joules / telemetry.steps
    return numbers
