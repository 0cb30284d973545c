"""The numbers of a trial, as tables of trials and MLflow show them.

To add a number, name it in `NUMBERS` and compute it in `harness.measure.numbers`. The name ends with
the unit where it has one (`_ms`, `_mib`), because MLflow shows no units. Records, the runs of trials in
MLflow, data frames and exported tables then have it too; the runs of cells have those in
`harness.tracking.contents.CELL_METRICS`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from statistics import fmean

from harness.sweep.cell import ThroughputUnit

NAME_LENGTH = 250  # characters of a metric's name that MLflow takes
RATE = "throughput_samples_per_s"  # the number that cells are ranked by
# The same for each unit: of some scripts, nobody counts the samples.
RATES: Mapping[ThroughputUnit, str] = {"samples/s": RATE, "steps/s": "throughput_steps_per_s"}


# What each number of a trial means. Names that depend on the record, as in `phase_train_s`, have a `*` for
# what is different. They are part of what users have: filters and charts in MLflow refer to them.
NUMBERS: Mapping[str, str] = {
    # Speed, in the steady state of the trial.
    RATE: "samples of all ranks a second, in the measured window",
    RATES["steps/s"]: "steps a second, of scripts whose samples nobody counts",
    "throughput_tokens_per_s": "the same in tokens, of workloads that state them",
    "step_time_p50_ms": "median time of a step of the window, at the slowest rank",
    "step_time_p90_ms": "90th percentile of the same",
    "step_time_p99_ms": "99th percentile of the same",
    "skew": "share of its time that another rank waits for the slowest one",
    # What was learned.
    "final_loss": "loss of the last step in training, mean over ranks",
    "final_*": "target metric at the last evaluation",
    "best_*": "target metric at the best evaluation",
    "epochs": "epochs trained, of trials with a rule for stopping",
    "epochs_to_best": "epochs until the best evaluation",
    "seconds_to_goal": "time from the first step to the goal of the rule for stopping",
    # Where the time went.
    "*_share": "share of the window's time in this phase of a step, all ranks together",
    "phase_steps": "steps of the window that these shares are of: a long trial samples them",
    "harness.interruptions": "how often the trial was interrupted and resumed",
    "harness.interruptions_lost_s": "time that the interruptions cost",
    "phase_*_s": "time of this phase of the trial, at the rank that took longest",
    "wall_s": "time of all attempts together, without the pauses between them",
    "ettr": "share of that time that trained",
    # What torch.compile and fp16's loss scaling did.
    "compile_graphs": "graphs that were compiled, at the rank with most",
    "compile_graph_breaks": "graph breaks, at the rank with most",
    "compile_recompiles": "compilations because a guard failed, at the rank with most",
    "loss_scale": "scale of the loss in fp16 at the end",
    "loss_scale_skipped_steps": "steps that fp16 skipped because gradients overflowed",
    # How well the hardware was used; MFU as a fraction.
    "mfu": "FLOPs of the model a second over the vendor's peak",
    "mfu_measured": "the same over the peak that `harness peak` measured before",
    # Telemetry during the training.
    "gpu_utilization": "share of time with a kernel on the GPU, mean",
    "gpu_sm_clock_mhz": "clock of the GPU's multiprocessors, mean",
    "gpu_sm_clock_lowest_mhz": "the lowest of it, of all ranks",
    "gpu_sm_clock_highest_mhz": "the highest of it, of all ranks",
    "gpu_power_w": "power of the GPU, mean",
    "load_per_core": "load average of the machine per core, mean",
    "cpu_steal": "share of all cores' time that the hypervisor took",
    "gpu_throttled": "share of samples in which heat or its board slowed the GPU down, mean",
    "gpu_foreign_processes": "processes of others on the GPU, at the rank with most",
    "joules_per_sample": "energy of all GPUs for one sample: their mean power over the throughput",
    "memory_*_mib": "peak of this kind of memory, at the rank that took most",
}


def over_trials(trials: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the numbers of a cell: each is the mean over those of its trials that have it."""
    values: dict[str, list[float]] = {}
    for numbers in trials:
        for name, value in numbers.items():
            values.setdefault(name, []).append(value)
    return {name: fmean(of_trials) for name, of_trials in values.items()}


def in_order(names: Iterable[str]) -> list[str]:
    """Return names of numbers in the order of `NUMBERS`, and of their own within a pattern."""
    patterns = [*NUMBERS, ""]  # of the numbers of a newer harness, which come last
    return sorted(names, key=lambda name: (patterns.index(_pattern_of(name)), name))


@cache
def _pattern_of(name: str) -> str:
    """Return the pattern in `NUMBERS` of a number's name: the longest that matches it, "" for none."""
    patterns = [pattern for pattern in NUMBERS if fnmatchcase(name, pattern)]
    return max(patterns, key=len, default="")


def target_name(metric: str) -> str:
    """Return the name of a target metric in tables and MLflow, where `loss` is that of training."""
    return "test_loss" if metric == "loss" else metric


@cache
def final_name(metric: str) -> str:
    """Return the name of the number that is the target metric at the end."""
    return metric_name(f"final_{target_name(metric)}")


def best_name(metric: str) -> str:
    """Return the name of the number that is the target metric at the best evaluation."""
    return metric_name(f"best_{target_name(metric)}")


def metric_name(name: str) -> str:
    """Return `name` as MLflow takes it for a metric.

    Characters that it refuses are replaced, and so are parts of a path that lead elsewhere, as in
    `../loss`. A name that is too long ends with its digest.
    """
    allowed = re.sub(r"[^\w./ -]", "_", name, flags=re.ASCII)
    parts = ["_" if part in ("", ".", "..") else part for part in allowed.split("/")]
    path = "/".join(parts)
    if len(path) <= NAME_LENGTH:
        return path
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{path[: NAME_LENGTH - 9]}-{digest}"
