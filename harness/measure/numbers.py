"""Computes the numbers of a trial once, when its record is assembled; `harness.records.numbers` lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TypeVar

import numpy as np

from harness.records.numbers import RATES, final_name, metric_name, target_name
from harness.records.record import Evaluation, RankResult, Record, Telemetry

T = TypeVar("T")
MIB = 2**20
TRAINING_PHASES = ("warmup", "train")
# The numbers that are the mean of a reading, and by what it is divided.
READINGS = {
    "gpu_utilization": ("gpu_utilization", 1),
    "gpu_memory_mib": ("gpu_memory_bytes", MIB),
    "gpu_temperature_c": ("gpu_temperature_c", 1),
    "gpu_sm_clock_mhz": ("gpu_sm_clock_hz", 1e6),
    "gpu_power_w": ("gpu_power_w", 1),
    "cpu_frequency_mhz": ("cpu_frequency_hz", 1e6),
    "load_per_core": ("load_per_core", 1),
}
SHARES = ("cpu_use", "cpu_steal", "process_cpu")


def trial_numbers(record: Record, ranks: Sequence[RankResult]) -> dict[str, float]:
    """Return the numbers of a trial by their names; what was not measured is absent.

    A failed trial has few of them, and MLflow leaves its fields empty rather than zero.
    """
    numbers: dict[str, float | None] = {
        **_speed(record),
        **_learned(record),
        **_times(record),
        **_compilation(ranks),
        **_telemetry(record, ranks),
        **_memory(ranks),
    }
    return {metric_name(name): float(n) for name, n in numbers.items() if n is not None}


def _speed(record: Record) -> dict[str, float | None]:
    """Return the numbers of the measured window."""
    summary = record.summary
    if summary is None:
        return {}
    numbers: dict[str, float | None] = {
        RATES[summary.throughput_unit]: summary.throughput,
        "phase_steps": summary.phase_steps or None,
        "skew": None if summary.slowest is None else summary.slowest.skew,
    }
    tokens = None if record.rank0 is None else record.rank0.tokens_per_sample
    if summary.throughput is not None and tokens is not None:
        numbers["throughput_tokens_per_s"] = summary.throughput * tokens
    steps = {"p50": summary.step_p50, "p90": summary.step_p90, "p99": summary.step_p99}
    for name, seconds in steps.items():
        if seconds is not None:
            numbers[f"step_time_{name}_ms"] = seconds * 1000
    for phase, share in summary.shares.items():
        numbers[f"{phase}_share"] = share
    return numbers


def _learned(record: Record) -> dict[str, float | None]:
    """Return the losses and metrics, and how long a trial with a rule for stopping took to them."""
    summary, report = record.summary, record.rank0
    if summary is None or report is None:
        return {}
    numbers = {
        "final_loss": summary.final_loss,
        final_name(report.target.name): summary.final_metric,
        f"best_{target_name(report.target.name)}": summary.best_metric,
    }
    if report.stop is None:
        return numbers
    best = report.best_evaluation
    numbers["epochs"] = report.stop.step / report.steps_per_epoch
    numbers["epochs_to_best"] = None if best is None else best.epoch
    if report.stop.reason == "goal":
        numbers["epochs_to_goal"] = numbers["epochs"]
        for evaluation in report.evaluations:
            if evaluation.step == report.stop.step:
                numbers["seconds_to_goal"] = _seconds_until(record, evaluation)
    return numbers


def _seconds_until(record: Record, evaluation: Evaluation) -> float | None:
    """Return the seconds from the start of training to the end of an evaluation, as MLPerf counts them.

    None of a trial that was interrupted, as what its pause cost is not known.
    """
    if record.rank0 is None or record.interruptions:
        return None
    ended_at = evaluation.started_at + (evaluation.seconds or 0.0)
    return ended_at - record.rank0.training_began_at


def _times(record: Record) -> dict[str, float | None]:
    """Return where the wall time of a trial went.

    Its share that trained is what Llama 3's report calls effective training time (ETTR). Attempts
    before the trial began anew, as after an invalid one, do not count, nor do pauses between attempts.
    """
    numbers: dict[str, float | None] = {}
    if record.interruptions:
        lost = [interruption.lost_seconds for interruption in record.interruptions]
        numbers["harness.interruptions"] = len(lost)
        numbers["harness.interruptions_lost_s"] = sum(lost)
    for phase, seconds in record.phases.items():
        numbers[f"phase_{phase}_s"] = seconds
    if record.summary is None:
        return numbers
    wall = 0.0
    for failure in record.previous_failures:
        if failure.kind == "Invalid":  # the trial began anew
            wall = 0.0
        elif failure.began_at is not None:
            wall += max(0.0, failure.at - failure.began_at)
    wall += record.ended - record.started
    # Each phase is that of the rank that was in it longest.
    trained = sum(record.phases.get(name, 0.0) for name in TRAINING_PHASES)
    numbers["wall_s"] = wall
    numbers["ettr"] = min(trained, wall) / wall if wall else 0.0
    return numbers


def _compilation(ranks: Sequence[RankResult]) -> dict[str, float | None]:
    """Return what torch.compile did at the rank with most of it, and the loss scale that ranks share.

    Ranks compile by themselves, and only some may meet a graph break.
    """
    numbers: dict[str, float | None] = {}
    compiled = [rank.compiled for rank in ranks if rank.compiled is not None]
    if compiled:
        numbers["compile_graphs"] = max(rank.graphs for rank in compiled)
        breaks = [sum(rank.graph_breaks.values()) for rank in compiled]
        numbers["compile_graph_breaks"] = max(breaks)
        numbers["compile_recompiles"] = max(rank.recompiles for rank in compiled)
    if ranks and ranks[0].loss_scale is not None:
        numbers["loss_scale"] = ranks[0].loss_scale.scale
        numbers["loss_scale_skipped_steps"] = ranks[0].loss_scale.skipped_steps
    return numbers


def _telemetry(record: Record, ranks: Sequence[RankResult]) -> dict[str, float | None]:
    """Return the telemetry of all ranks: means over them, nothing unless every rank has some."""
    telemetry = _all_known([rank.telemetry for rank in ranks])
    if not telemetry:
        return {}
    numbers: dict[str, float | None] = {}
    for name, (reading, unit) in READINGS.items():
        means = _all_known([_mean_reading(rank, reading) for rank in telemetry])
        numbers[name] = None if means is None else fmean(means) / unit
    for name in SHARES:
        shares = _all_known([rank.shares.get(name) for rank in telemetry])
        numbers[name] = None if shares is None else fmean(shares)
    for reason, share in _largest([rank.throttled or {} for rank in telemetry]).items():
        numbers[f"gpu_throttled_share.{reason}"] = share
    processes = _all_known([rank.foreign_processes for rank in telemetry])
    numbers["gpu_foreign_processes"] = None if processes is None else max(map(len, processes))
    numbers["joules_per_sample"] = _joules_per_sample(record, telemetry)
    return {**numbers, **_clocks(telemetry)}


def _clocks(telemetry: Sequence[Telemetry]) -> dict[str, float | None]:
    """Return the lowest and the highest clock of a GPU, of the rank where they are furthest apart."""
    clocks = []
    for rank in telemetry:
        hertz = rank.readings.get("gpu_sm_clock_hz", np.empty(0))
        hertz = hertz[np.isfinite(hertz)]
        if hertz.size:
            clocks.append((float(hertz.min()) / 1e6, float(hertz.max()) / 1e6))
    if not clocks:
        return {}
    lowest, highest = max(clocks, key=lambda bounds: bounds[1] - bounds[0])
    return {"gpu_sm_clock_lowest_mhz": lowest, "gpu_sm_clock_highest_mhz": highest}


def _mean_reading(rank: Telemetry, name: str) -> float | None:
    """Return the mean of a reading over the samples that could be read, None without any."""
    values = rank.readings.get(name)
    if values is None or np.isnan(values).all():
        return None
    return float(np.nanmean(values, dtype=np.float64))


def _joules_per_sample(record: Record, telemetry: Sequence[Telemetry]) -> float | None:
    """Return the energy of all ranks' GPUs for one sample of the global batch.

    None without a counter, and of a script whose samples nobody counts.
    """
    summary = record.summary
    joules = _all_known([rank.joules for rank in telemetry])
    if joules is None or (summary is not None and summary.throughput_unit == "steps/s"):
        return None
    a_step = sum(of_rank / rank.steps for of_rank, rank in zip(joules, telemetry, strict=True))
    reported = None if summary is None else summary.samples_per_step
    return a_step / (reported or record.trial.cell.axes.batch_size)


def _memory(ranks: Sequence[RankResult]) -> dict[str, float | None]:
    """Return the peaks of memory, each of the rank that took most, and what training took of them."""
    peaks = _largest([rank.memory for rank in ranks])
    # None unless it is known of every rank: the unknown one might be the largest.
    training = _all_known([training_bytes(rank.memory) for rank in ranks])
    if training:
        peaks["training"] = max(training)
    return {f"memory_{kind}_mib": size / MIB for kind, size in peaks.items()}


def training_bytes(memory: Mapping[str, int]) -> int | None:
    """Return the bytes that training took, of what `PeakMemory.read` returned; None if unknown.

    On a GPU that is the peak of what torch allocated, elsewhere the growth of the resident size.
    """
    if "allocated" in memory:
        return memory["allocated"]
    if "resident" not in memory or "resident_before" not in memory:
        return None
    return memory["resident"] - memory["resident_before"]


def _all_known(values: Sequence[T | None]) -> list[T] | None:
    """Return the values of ranks, None if it is unknown at any of them."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else None


def _largest(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the largest value of each name in any of some mappings."""
    largest: dict[str, float] = {}
    for mapping in values:
        for name, value in mapping.items():
            largest[name] = max(largest.get(name, value), value)
    return largest
