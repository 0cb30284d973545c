"""The results of a cell's trials, in the form in which records and baselines are compared."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from harness.analysis.cells import group_by_cell
from harness.analysis.rows import TrialRow, trial_row
from harness.records.bounds import Amount, Moment, Number
from harness.records.differences import as_text, code_fields, environment_fields
from harness.records.environment import Environment
from harness.records.numbers import over_trials
from harness.records.record import Record, TargetMetric
from harness.statistics.interval import (
    Interval,
    geometric_mean_interval,
    mean_by_seed,
    mean_interval,
)
from harness.sweep.cell import Cell, ThroughputUnit

FEWEST_SEEDS = 3  # of a mean with an interval
KEPT_ENVIRONMENTS = 1024  # of which the fields are kept; a sweep has a few
# Fields of environments that comparisons leave out: what the key of the hardware has in it, what
# bears on no number, and lists whose content other fields have.
UNCOMPARED = re.compile(
    r"hardware\.(cores|cpu|cpu_version|gpus|memory_bytes|usable_cores)"
    r"|software\.(platform|packages\.(mlflow|submitit))|installed|mlflow|repository\.(dirty|diff)"
)
# Fields of environments that all trials of a cell must share, or their mean is that of nothing.
SHARED_FIELDS = ("software.", "settings.", "harness.training", "hardware.driver")
UNRECORDED = "unrecorded"  # the status of a trial that is planned and has left no record
# Of trials, the worst first.
STATUSES = (UNRECORDED, "failed", "interrupted", "invalid", "done")


@dataclass(frozen=True, kw_only=True)
class Session:
    """A cell's trials that were measured at one time, of which a baseline has several."""

    ended: Moment  # seconds since the epoch
    throughput: Amount  # the geometric mean over its seeds


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """A cell and its trials, with their means and intervals.

    It is saved as a baseline, so its fields are what can't be computed from others.
    """

    cell: Cell  # the workload with every axis set
    trials: Sequence[TrialRow]  # those that are done
    left_out: Mapping[str, Number]  # the number of trials that are not done, by status
    # What trials ran with, in detail: each value of each field of `harness.records.differences` once.
    environment: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # Of a baseline, the times at which it was measured; the last one is that of `trials`.
    sessions: Sequence[Session] = ()

    @cached_property
    def target(self) -> TargetMetric | None:
        """The target metric, None where no trial is done."""
        return next((trial.target for trial in self.trials if trial.target is not None), None)

    @cached_property
    def hardware(self) -> Sequence[str]:
        """The keys of the hardware that trials ran on, each once.

        They are of CPU or GPUs and not of the host, as nodes of one kind are alike.
        """
        return list(dict.fromkeys(trial.hardware for trial in self.trials if trial.hardware))

    @cached_property
    def measured_trials(self) -> Sequence[TrialRow]:
        """The trials of which throughput was measured."""
        return [trial for trial in self.trials if trial.throughput]

    @property
    def throughput_unit(self) -> ThroughputUnit:
        """The unit of its throughput: samples/s, or steps/s of a script that reports no samples."""
        units = {trial.throughput_unit for trial in self.trials}
        return "steps/s" if "steps/s" in units else "samples/s"

    @cached_property
    def numbers(self) -> Mapping[str, float]:
        """The numbers over its trials, as `harness.records.numbers` names them."""
        return over_trials([trial.numbers for trial in self.trials])

    @cached_property
    def log_throughputs(self) -> Sequence[float]:
        """The logarithm of the throughput of each measured trial."""
        return [math.log(trial.throughput) for trial in self.trials if trial.throughput]

    @cached_property
    def independent_logs(self) -> Sequence[float]:
        """The log throughputs that count as independent values, where pairs do not cancel seeds.

        Repeats of a seed are averaged first and count once (`harness.statistics.trials`).
        """
        seeds = [trial.seed for trial in self.measured_trials]
        return list(mean_by_seed(self.log_throughputs, seeds).values())

    @cached_property
    def throughput(self) -> Interval | None:
        """The geometric mean of samples/s with its 95% interval over seeds; None if not measured.

        Fewer than `FEWEST_SEEDS` seeds have a mean without an interval: two would have one of 25 times
        their standard error.
        """
        if not self.measured_trials:
            return None
        logs = self.independent_logs
        interval = geometric_mean_interval([math.exp(log) for log in logs])
        return interval if len(logs) >= FEWEST_SEEDS else replace(interval, bounds=None)

    @property
    def mean_throughput(self) -> float:
        """The geometric mean of samples/s, 0 if it was not measured."""
        return self.throughput.mean if self.throughput else 0.0

    @cached_property
    def metric_by_seed(self) -> Mapping[int, float]:
        """The target metric at the end by seed, each the mean of its repeats."""
        values, seeds = [], []
        for trial in self.trials:
            if trial.metric is not None:
                values.append(trial.metric)
                seeds.append(trial.seed)
        return mean_by_seed(values, seeds)

    @cached_property
    def metric(self) -> Interval | None:
        """The mean target metric with its 95% interval over seeds; None if it was not evaluated.

        A repeat of a seed computes the same but for the order of floating-point sums, so that
        repeats show nothing of how much the metric scatters, even where there are few seeds.
        """
        means = list(self.metric_by_seed.values())
        if not means:
            return None
        interval = mean_interval(means)
        return interval if len(means) >= FEWEST_SEEDS else replace(interval, bounds=None)

    @property
    def lanes(self) -> list[int]:
        """The numbers of lanes in which its measured trials ran, each once."""
        return sorted({trial.lanes for trial in self.measured_trials})

    @cached_property
    def mixed(self) -> Mapping[str, Sequence[str]]:
        """What its trials should have had in common and did not, each with its values."""
        shared = {"hardware": self.hardware}
        for name, values in self.environment.items():
            if name.startswith(SHARED_FIELDS):
                shared[name] = values
        return {name: sorted(values) for name, values in shared.items() if len(values) > 1}

    @cached_property
    def conditions(self) -> Mapping[str, str]:
        """The code of its workload and what its trials ran with; a field has all of its values."""
        table = {name: as_text(value) for name, value in code_fields(self.cell).items()}
        for name, values in self.environment.items():
            table[name] = " and ".join(sorted(values))
        return table

    @property
    def planned(self) -> int:
        """How many trials were asked for, as far as this result tells."""
        return len(self.trials) + sum(self.left_out.values())

    @property
    def status(self) -> str:
        """The worst status among its trials, one of `STATUSES`."""
        for status in STATUSES:
            if self.left_out.get(status):
                return status
        return "done" if self.trials else UNRECORDED

    def describe_left_out(self) -> str:
        """Return the trials that are not done: `2 failed, 1 invalid`, or nothing."""
        return ", ".join(f"{count} {status}" for status, count in self.left_out.items())


def aggregate(records: Sequence[Record]) -> list[CellResult]:
    """Return the cells of some records in order of appearance, each with all its trials."""
    by_cell = group_by_cell(records)
    return [cell_result(of_cell[0].trial.cell, of_cell) for of_cell in by_cell.values()]


def cell_result(cell: Cell, records: Sequence[Record], unrecorded: int = 0) -> CellResult:
    """Return the result of a cell from the records of its trials, and how many have left none.

    Trials that are not done are only counted, by their status.
    """
    done = [record for record in records if record.status == "done"]
    left_out: Counter[str] = Counter()
    for record in records:
        if record.status != "done":
            left_out[record.status] += 1
    if unrecorded:
        left_out[UNRECORDED] = unrecorded
    # The records of a sweep share a few objects.
    environments = {id(record.environment): record.environment for record in done}
    values: dict[str, dict[str, None]] = {}  # of each field, an ordered set
    for environment in environments.values():
        assert environment is not None
        for name, text in compared_fields(environment).items():
            values.setdefault(name, {})[text] = None
    return CellResult(
        cell=cell,
        trials=list(map(trial_row, done)),
        left_out=dict(left_out),
        environment={name: list(texts) for name, texts in values.items()},
    )


@lru_cache(KEPT_ENVIRONMENTS)
def compared_fields(environment: Environment) -> dict[str, str]:
    """Return the fields of an environment that comparisons name, as text.

    Without paths, which belong to one machine: baselines are meant to be committed.
    """
    texts = {}
    for name, value in environment_fields(environment).items():
        text = as_text(value)
        if not UNCOMPARED.fullmatch(name) and "/" not in text:
            texts[name] = text
    return texts
