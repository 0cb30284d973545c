"""The numbers of a trial, as tables of trials and MLflow show them: a row for each.

To add a number, add a row to `NUMBERS` and compute it in `harness.measure.numbers`. The name ends with
the unit where it has one (`_ms`, `_mib`), because MLflow shows no units. Records, the runs of cells,
MLflow's comparisons and charts, data frames and exported tables then have it too.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from statistics import fmean

from harness.spec.cell import ThroughputUnit

NAME_LENGTH = 250  # characters of a metric's name that MLflow takes
RATE = "throughput_samples_per_s"  # the number that cells are ranked by
# The same for each unit: of some scripts, nobody counts the samples.
RATES: Mapping[ThroughputUnit, str] = {"samples/s": RATE, "steps/s": "throughput_steps_per_s"}


@dataclass(frozen=True)
class NumberMeaning:
    """What a number of a trial means. A cell shows the mean over its done trials.

    Names that depend on the record, as in `phase_train_s`, have a `*` for what is different. They are
    part of what users have: filters and charts in MLflow refer to them.
    """

    name: str  # in MLflow and in tables
    unit: str  # empty for a count or a share
    meaning: str  # without a full stop
    summed: bool = False  # a cell shows the sum instead of the mean
    with_range: bool = False  # a cell shows the smallest and the largest value too


NUMBERS: tuple[NumberMeaning, ...] = (
    # Speed, in the steady state of the trial.
    NumberMeaning(RATE, "samples/s", "samples of all ranks a second, in the measured window", with_range=True),
    NumberMeaning(RATES["steps/s"], "steps/s", "steps a second, of scripts whose samples nobody counts",
                  with_range=True),
    NumberMeaning("throughput_tokens_per_s", "tokens/s", "the same in tokens, of workloads that state them"),
    NumberMeaning("step_time_p50_ms", "ms", "median time of a step of the window, at the slowest rank"),
    NumberMeaning("step_time_p90_ms", "ms", "90th percentile of the same"),
    NumberMeaning("step_time_p99_ms", "ms", "99th percentile of the same"),
    NumberMeaning("skew", "", "share of its time that another rank waits for the slowest one"),
    # What was learned.
    NumberMeaning("final_loss", "", "loss of the last step in training, mean over ranks", with_range=True),
    NumberMeaning("final_*", "", "target metric at the last evaluation", with_range=True),
    NumberMeaning("best_*", "", "target metric at the best evaluation"),
    NumberMeaning("epochs", "", "epochs trained, of trials with a rule for stopping", with_range=True),
    NumberMeaning("epochs_to_best", "", "epochs until the best evaluation"),
    NumberMeaning("epochs_to_goal", "", "epochs until the goal of the rule for stopping"),
    NumberMeaning("seconds_to_goal", "s", "time from the first step to the goal of the rule for stopping"),
    # Where the time went.
    NumberMeaning("*_share", "", "share of the window's time in this phase of a step, all ranks together"),
    NumberMeaning("phase_steps", "", "steps of the window that these shares are of: a long trial samples them"),
    NumberMeaning("harness.interruptions", "", "how often the trial was interrupted and resumed", summed=True),
    NumberMeaning("harness.interruptions_lost_s", "s", "time that the interruptions cost", summed=True),
    NumberMeaning("phase_*_s", "s", "time of this phase of the trial, at the rank that took longest"),
    NumberMeaning("wall_s", "s", "time of all attempts together, without the pauses between them"),
    NumberMeaning("ettr", "", "share of that time that trained"),
    # What torch.compile and fp16's loss scaling did.
    NumberMeaning("compile_graphs", "", "graphs that were compiled, at the rank with most"),
    NumberMeaning("compile_graph_breaks", "", "graph breaks, at the rank with most"),
    NumberMeaning("compile_recompiles", "", "compilations because a guard failed, at the rank with most"),
    NumberMeaning("loss_scale", "", "scale of the loss in fp16 at the end"),
    NumberMeaning("loss_scale_skipped_steps", "", "steps that fp16 skipped because gradients overflowed"),
    # How well the hardware was used; MFU as a fraction.
    NumberMeaning("mfu", "", "FLOPs of the model a second over the vendor's peak"),
    NumberMeaning("mfu_measured", "", "the same over the peak that `harness peak` measured before"),
    # Telemetry during the training.
    NumberMeaning("gpu_utilization", "", "share of time with a kernel on the GPU, mean"),
    NumberMeaning("gpu_memory_mib", "MiB", "memory in use on the GPU, mean"),
    NumberMeaning("gpu_temperature_c", "°C", "temperature of the GPU, mean"),
    NumberMeaning("gpu_sm_clock_mhz", "MHz", "clock of the GPU's multiprocessors, mean"),
    NumberMeaning("gpu_sm_clock_lowest_mhz", "MHz", "the lowest of it, at the rank where it moved most"),
    NumberMeaning("gpu_sm_clock_highest_mhz", "MHz", "the highest of it, at the same rank"),
    NumberMeaning("gpu_power_w", "W", "power of the GPU, mean"),
    NumberMeaning("cpu_frequency_mhz", "MHz", "frequency of the cores, mean"),
    NumberMeaning("load_per_core", "", "load average of the machine per core, mean"),
    NumberMeaning("cpu_use", "", "share of all cores' time in use"),
    NumberMeaning("cpu_steal", "", "share of all cores' time that the hypervisor took"),
    NumberMeaning("process_cpu", "cores", "cores that a rank used, mean"),
    NumberMeaning("gpu_throttled_share.*", "", "share of samples in which the GPU was throttled, at the worst rank"),
    NumberMeaning("gpu_foreign_processes", "", "processes of others on the GPU, at the rank with most"),
    NumberMeaning("joules_per_sample", "J", "energy of all GPUs for one sample"),
    NumberMeaning("memory_*_mib", "MiB", "peak of this kind of memory, at the rank that took most"),
)  # fmt: skip


def over_trials(trials: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the numbers of a cell from those of its done trials.

    Each is the mean (or the sum, as its row in `NUMBERS` says) over the trials that have it.
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


@cache
def row_of(name: str) -> NumberMeaning:
    """Return the row that a number's name belongs to: the longest pattern that matches it."""
    matching = [row for row in NUMBERS if fnmatchcase(name, row.name)]
    return max(matching, key=lambda row: len(row.name))


def in_order(names: Collection[str]) -> list[str]:
    """Return names of numbers in the order of `NUMBERS`, and of their own within a pattern."""
    return sorted(names, key=lambda name: (NUMBERS.index(row_of(name)), name))


def is_number(name: str) -> bool:
    """Return whether a number of a trial or a cell may have this name."""
    base = re.sub("_(min|max)$", "", name)
    return any(fnmatchcase(base, row.name) for row in NUMBERS)


def target_name(metric: str) -> str:
    """Return the name of a target metric in tables and MLflow, where `loss` is that of training."""
    return "test_loss" if metric == "loss" else metric


@cache
def final_name(metric: str) -> str:
    """Return the name of the number that is the target metric at the end."""
    return metric_name(f"final_{target_name(metric)}")


def metric_name(name: str) -> str:
    """Return `name` as MLflow takes it for a metric.

    Characters that it refuses are replaced, and so are parts of a path that lead elsewhere, as in
    `../loss`. A name that is too long ends with its digest.
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
