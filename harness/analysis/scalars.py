"""The single numbers of a trial, as tables of trials and MLflow show them: a row for each.

To add a number, add a row to `SCALARS`: its name, its unit, what it means and how it is read from a
record. The name ends with the unit where it has one (`_ms`, `_mib`), because MLflow shows no units.
The runs of cells, MLflow's comparisons and charts, data frames and exported tables then have it too.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from statistics import fmean

from harness.analysis.stopping import epochs_to_best, epochs_to_goal, epochs_trained
from harness.records.goodput import goodput
from harness.records.record import Compiled, LossScale, Record, Summary, TelemetryAcross
from harness.records.time_to_goal import seconds_to_goal
from harness.spec.cell import ThroughputUnit

KEPT_NAMES = 4096  # of numbers, for which a sweep has some dozens
NAME_LENGTH = 250  # characters of a metric's name that MLflow takes
RATE = "throughput_samples_per_s"  # the number that cells are ranked by
# The same for each unit: of some scripts, nobody counts the samples.
RATES: Mapping[ThroughputUnit, str] = {"samples/s": RATE, "steps/s": "throughput_steps_per_s"}

# How a number in the base unit becomes one in the unit of the key.
UNITS: Mapping[str, Callable[[float], float]] = {
    "": float,  # a count or a share
    "s": float,
    "ms": lambda seconds: seconds * 1000,
    "MiB": lambda size: size / 2**20,
    "MHz": lambda hertz: hertz / 1e6,
    "W": float,
    "J": float,
    "°C": float,
    "cores": float,
    "samples/s": float,
    "steps/s": float,
    "tokens/s": float,
    "FLOP/byte": float,
}


@dataclass(frozen=True)
class Scalar:
    """A number of a trial: its name, its unit, what it means, and how it is read from a record.

    `read` returns the number in the base unit (seconds, bytes, hertz), or None where it was not
    measured. Numbers whose names depend on the record, as in `phase_*_s`, are returned by what stands
    for the `*` in `name`. A cell shows the mean over its done trials.

    Names are part of what users have: filters and charts in MLflow refer to them.
    """

    name: str  # in MLflow and in tables
    unit: str  # a key of UNITS
    meaning: str  # without a full stop
    read: Callable[[Record], float | Mapping[str, float | None] | None]
    summed: bool = False  # a cell shows the sum instead of the mean
    with_range: bool = False  # a cell shows the smallest and the largest value too

    def values(self, record: Record) -> Iterator[tuple[str, float]]:
        """Yield the name and the value in `unit` of each number that was measured."""
        numbers = self.read(record)
        if not isinstance(numbers, Mapping):
            numbers = {"*": numbers}  # a name without a pattern stays as it is
        for part, value in numbers.items():
            if value is not None:
                yield self.name.replace("*", part), UNITS[self.unit](value)


def of_summary(read: Callable[[Summary], float | None]) -> Callable[[Record], float | None]:
    """Return a function that reads a number of the summary, None for a trial that has none."""

    def read_record(record: Record) -> float | None:
        if record.summary is None:
            return None
        return read(record.summary)

    return read_record


def throughput_in(unit: ThroughputUnit) -> Callable[[Record], float | None]:
    """Return a function that reads a throughput of this unit, None of another one."""

    def read(record: Record) -> float | None:
        if record.summary is None or record.summary.throughput_unit != unit:
            return None
        return record.summary.throughput

    return read


def target_name(metric: str) -> str:
    """Return the name of a target metric in tables and MLflow, where `loss` is that of training."""
    return "test_loss" if metric == "loss" else metric


def of_target(
    read: Callable[[Summary], float | None],
) -> Callable[[Record], Mapping[str, float | None]]:
    """Return a function that reads a value of the target metric, by the metric's name.

    `read` returns the value from a summary: the last one or the best one.
    """

    def read_record(record: Record) -> Mapping[str, float | None]:
        if record.summary is None or record.rank0 is None:
            return {}
        return {target_name(record.rank0.target.name): read(record.summary)}

    return read_record


def step_phase_shares(record: Record) -> Mapping[str, float]:
    """Return the share of the measured steps' time that each phase of a step took."""
    if record.summary is None:
        return {}
    return record.summary.shares


def interruptions(record: Record) -> float | None:
    """Return how often the trial was interrupted and resumed, None if never.

    All ranks stop at the same step, so rank 0 speaks for all.
    """
    return len(record.ranks.across.interruptions) or None


def interruptions_lost(record: Record) -> float | None:
    """Return the seconds that all interruptions cost, None if there were none."""
    interruptions = record.ranks.across.interruptions
    if not interruptions:
        return None
    return sum(interruption.lost_seconds for interruption in interruptions)


def most_compiled(read: Callable[[Compiled], float]) -> Callable[[Record], float | None]:
    """Return a function that reads a number of torch.compile, of the rank that had most.

    Ranks compile by themselves, and only some may meet a graph break. Eager trials have none.
    """

    def read_record(record: Record) -> float | None:
        compiled = record.ranks.across.compiled
        return None if compiled is None else read(compiled)

    return read_record


def of_loss_scale(read: Callable[[LossScale], float]) -> Callable[[Record], float | None]:
    """Return a function that reads a number of fp16's loss scaling, which all ranks share.

    Only trials with precision=fp16 have one.
    """

    def read_record(record: Record) -> float | None:
        loss_scale = record.ranks.across.loss_scale
        return None if loss_scale is None else read(loss_scale)

    return read_record


def tokens_per_second(record: Record) -> float | None:
    """Return the tokens of all ranks a second, None for samples that are no sequences of tokens."""
    if record.summary is None or record.summary.throughput is None or record.rank0 is None:
        return None
    if record.rank0.tokens_per_sample is None:
        return None
    return record.summary.throughput * record.rank0.tokens_per_sample


def peak_memory(record: Record) -> Mapping[str, float]:
    """Return the peaks of memory in bytes, by kind, each of the rank that took most.

    The kinds are those of `PeakMemory`, and `training`: what training itself took of them.
    """
    across = record.ranks.across
    peaks: dict[str, float] = dict(across.memory)
    if across.training_bytes is not None:
        peaks["training"] = across.training_bytes
    return peaks


def of_telemetry(
    read: Callable[[TelemetryAcross], float | None],
) -> Callable[[Record], float | None]:
    """Return a function that reads a number of the telemetry of all ranks, None without any."""

    def read_record(record: Record) -> float | None:
        telemetry = record.ranks.across.telemetry
        return None if telemetry is None else read(telemetry)

    return read_record


def throttled_shares(record: Record) -> Mapping[str, float]:
    """Return the share of samples in which a GPU was throttled, by reason, at its worst rank."""
    telemetry = record.ranks.across.telemetry
    return {} if telemetry is None else telemetry.throttled


def clock_movement(record: Record) -> float | None:
    """Return by how much the highest clock of a GPU was above its lowest while it trained.

    It is a share of the lowest, at the rank where that is largest. None where no GPU reports its clock.
    """
    telemetry = record.ranks.across.telemetry
    if telemetry is None or telemetry.sm_clock_range is None:
        return None
    lowest, highest = telemetry.sm_clock_range
    return highest / lowest - 1 if lowest else None


def joules_per_sample(record: Record) -> float | None:
    """Return the energy that all ranks' GPUs took for one sample of the global batch, in joules.

    None of a script whose samples nobody counts.
    """
    telemetry, summary = record.ranks.across.telemetry, record.summary
    if telemetry is None or telemetry.joules_per_step is None:
        return None
    if summary is not None and summary.throughput_unit == "steps/s":
        return None
    reported = None if summary is None else summary.samples_per_step
    return telemetry.joules_per_step / (reported or record.trial.cell.axes.batch_size)


def trained_share(record: Record) -> float | None:
    """Return the share of a trial's wall time that trained, None unless it has come to its end."""
    spent = goodput(record)
    return None if spent is None else spent.share


SCALARS: tuple[Scalar, ...] = (
    # Speed, in the steady state of the trial.
    Scalar(RATE, "samples/s", "samples of all ranks a second, in the measured window",
           throughput_in("samples/s"), with_range=True),
    Scalar(RATES["steps/s"], "steps/s", "steps a second, of scripts whose samples nobody counts",
           throughput_in("steps/s"), with_range=True),
    Scalar("throughput_tokens_per_s", "tokens/s", "the same in tokens, of workloads that state them",
           tokens_per_second),
    Scalar("step_time_p50_ms", "ms", "median time of a step of the window, at the slowest rank",
           of_summary(lambda summary: summary.step_p50)),
    Scalar("step_time_p90_ms", "ms", "90th percentile of the same",
           of_summary(lambda summary: summary.step_p90)),
    Scalar("step_time_p99_ms", "ms", "99th percentile of the same",
           of_summary(lambda summary: summary.step_p99)),
    Scalar("steady_from_step", "", "first step of the window, counted from 0",
           of_summary(lambda summary: summary.window_start)),
    Scalar("skew", "", "share of its time that another rank waits for the slowest one",
           of_summary(lambda summary: summary.slowest.skew if summary.slowest else None)),
    # What was learned.
    Scalar("final_loss", "", "loss of the last step in training, mean over ranks",
           of_summary(lambda summary: summary.final_loss), with_range=True),
    Scalar("final_*", "", "target metric at the last evaluation",
                 of_target(lambda summary: summary.final_metric), with_range=True),
    Scalar("best_*", "", "target metric at the best evaluation",
                 of_target(lambda summary: summary.best_metric)),
    Scalar("epochs", "", "epochs trained, of trials with a rule for stopping", epochs_trained,
           with_range=True),
    Scalar("epochs_to_best", "", "epochs until the best evaluation", epochs_to_best),
    Scalar("epochs_to_goal", "", "epochs until the goal of the rule for stopping", epochs_to_goal),
    Scalar("seconds_to_goal", "s", "time from the first step to the goal of the rule for stopping",
           seconds_to_goal),
    # Where the time went.
    Scalar("*_share", "", "share of the window's time in this phase of a step, all ranks together",
                 step_phase_shares),
    Scalar("phase_steps", "", "steps of the window that these shares are of: a long trial samples them",
           of_summary(lambda summary: summary.phase_steps or None)),
    Scalar("harness.interruptions", "", "how often the trial was interrupted and resumed",
           interruptions, summed=True),
    Scalar("harness.interruptions_lost_s", "s", "time that the interruptions cost",
           interruptions_lost, summed=True),
    Scalar("phase_*_s", "s", "time of this phase of the trial, at the rank that took longest",
                 lambda record: record.phases),
    Scalar("ettr", "", "share of the wall time over all attempts that trained", trained_share),
    # What torch.compile and fp16's loss scaling did.
    Scalar("compile_graphs", "", "graphs that were compiled, at the rank with most",
           most_compiled(lambda compiled: compiled.graphs)),
    Scalar("compile_graph_breaks", "", "graph breaks, at the rank with most",
           most_compiled(lambda compiled: sum(compiled.graph_breaks.values()))),
    Scalar("compile_recompiles", "", "compilations because a guard failed, at the rank with most",
           most_compiled(lambda compiled: compiled.recompiles)),
    Scalar("compile_cache_hits", "", "graphs that were in Inductor's cache, at the rank with most",
           most_compiled(lambda compiled: compiled.cache_hits)),
    Scalar("loss_scale", "", "scale of the loss in fp16 at the end",
           of_loss_scale(lambda loss_scale: loss_scale.scale)),
    Scalar("loss_scale_skipped_steps", "", "steps that fp16 skipped because gradients overflowed",
           of_loss_scale(lambda loss_scale: loss_scale.skipped_steps)),
    # How well the hardware was used; MFU as a fraction.
    Scalar("mfu", "", "FLOPs of the model a second over the vendor's peak",
           of_summary(lambda summary: summary.mfu)),
    Scalar("mfu_measured", "", "the same over the peak that `harness peak` measured",
           of_summary(lambda summary: summary.mfu_measured)),
    # Telemetry during the training.
    Scalar("gpu_utilization", "", "share of time with a kernel on the GPU, mean",
           of_telemetry(lambda telemetry: telemetry.readings.get("gpu_utilization"))),
    Scalar("gpu_memory_mib", "MiB", "memory in use on the GPU, mean",
           of_telemetry(lambda telemetry: telemetry.readings.get("gpu_memory_bytes"))),
    Scalar("gpu_temperature_c", "°C", "temperature of the GPU, mean",
           of_telemetry(lambda telemetry: telemetry.readings.get("gpu_temperature_c"))),
    Scalar("gpu_sm_clock_mhz", "MHz", "clock of the GPU's multiprocessors, mean",
           of_telemetry(lambda telemetry: telemetry.readings.get("gpu_sm_clock_hz"))),
    Scalar("gpu_sm_clock_movement", "", "how far its highest clock was above its lowest, at the worst rank",
           clock_movement),
    Scalar("gpu_power_w", "W", "power of the GPU, mean",
           of_telemetry(lambda telemetry: telemetry.readings.get("gpu_power_w"))),
    Scalar("cpu_frequency_mhz", "MHz", "frequency of the cores, mean",
           of_telemetry(lambda telemetry: telemetry.readings.get("cpu_frequency_hz"))),
    Scalar("load_per_core", "", "load average of the machine per core, mean",
           of_telemetry(lambda telemetry: telemetry.readings.get("load_per_core"))),
    Scalar("cpu_use", "", "share of all cores' time in use",
           of_telemetry(lambda telemetry: telemetry.shares.get("cpu_use"))),
    Scalar("cpu_steal", "", "share of all cores' time that the hypervisor took",
           of_telemetry(lambda telemetry: telemetry.shares.get("cpu_steal"))),
    Scalar("process_cpu", "cores", "cores that a rank used, mean",
           of_telemetry(lambda telemetry: telemetry.shares.get("process_cpu"))),
    Scalar("gpu_throttled_share.*", "", "share of samples in which the GPU was throttled, at the worst rank",
                 throttled_shares),
    Scalar("gpu_foreign_processes", "", "processes of others on the GPU, at the rank with most",
           of_telemetry(lambda telemetry: telemetry.foreign_processes)),
    Scalar("joules_per_sample", "J", "energy of all GPUs for one sample",
           joules_per_sample),
    Scalar("memory_*_mib", "MiB", "peak of this kind of memory, at the rank that took most",
                 peak_memory),
)  # fmt: skip


def scalars(record: Record) -> dict[str, float]:
    """Return the single numbers of a trial by their names; what was not measured is absent.

    A failed trial has few of them, and MLflow leaves its fields empty rather than zero.
    """
    numbers: dict[str, float] = {}
    for row in SCALARS:
        for name, value in row.values(record):
            numbers[metric_name(name)] = float(value)
    return numbers


def over_trials(trials: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the numbers of a cell from those of its done trials.

    Each is the mean (or the sum, as its row in `SCALARS` says) over the trials that have it.
    """
    values: dict[str, list[float]] = {}
    for numbers in trials:
        for name, value in numbers.items():
            values.setdefault(name, []).append(value)
    combined: dict[str, float] = {}
    for name, of_trials in values.items():
        row = row_of(name)
        combined[name] = sum(of_trials) if row.summed else fmean(of_trials)
        if row.with_range and len(of_trials) > 1:
            combined[metric_name(f"{name}_min")] = min(of_trials)
            combined[metric_name(f"{name}_max")] = max(of_trials)
    return combined


@lru_cache(maxsize=KEPT_NAMES)
def row_of(name: str) -> Scalar:
    """Return the row that a number's name belongs to: the longest pattern that matches it."""
    matching = [row for row in SCALARS if fnmatchcase(name, row.name)]
    return max(matching, key=lambda row: len(row.name))


def is_scalar(name: str) -> bool:
    """Return whether a number of a trial or a cell may have this name."""
    base = re.sub("_(min|max)$", "", name)
    return any(fnmatchcase(base, row.name) for row in SCALARS)


@lru_cache(maxsize=KEPT_NAMES)
def metric_name(name: str) -> str:
    """Return `name` as MLflow takes it for a metric.

    Characters that it refuses are replaced, and so are parts of a path that lead elsewhere, as in
    `../loss`. A name that is too long ends with its digest.

    Ten thousand trials have the same names, which are then the same texts in memory.
    """
    allowed = re.sub(r"[^\w./ -]", "_", name, flags=re.ASCII)
    parts = ["_" if part in ("", ".", "..") else part for part in allowed.split("/")]
    path = "/".join(parts)
    return path if len(path) <= NAME_LENGTH else _with_digest(path, name)


def distinct_names(names: Mapping[str, str]) -> dict[str, str]:
    """Return the names of metrics by what they stand for, no two of which are equal.

    Of those that are, each that differs from what it stands for ends with the digest of that.
    """
    counts = Counter(names.values())
    distinct = dict(names)
    for original, name in names.items():
        if counts[name] > 1 and name != original:
            distinct[original] = _with_digest(name, original)
    return distinct


def _with_digest(name: str, original: str) -> str:
    """Return a name that ends with the digest of what it was made from."""
    digest = hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name[: NAME_LENGTH - 9]}-{digest}"
