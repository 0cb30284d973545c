"""The results of trials and of cells.

A row has the facts and the numbers of a trial, flat. Tables of trials, data frames, cells, baselines,
MLflow and pytest all take what is in a row, so that a number is the same in all of them to the last
digit. A cell's result has its rows, their means and their intervals.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from harness.analysis.cells import group_by_cell
from harness.hardware.machine import Device, machine_key
from harness.records.differences import as_text, code_fields, environment_fields
from harness.records.environment import Environment
from harness.records.format import Amount, Moment, Number, Ordinal
from harness.records.numbers import RATES, final_name, over_trials
from harness.records.record import Rank0Report, Record, Status, TargetMetric
from harness.statistics.interval import (
    FEWEST_VALUES,
    Interval,
    geometric_mean_interval,
    mean_by_seed,
    mean_interval,
)
from harness.sweep.cell import Cell, ThroughputUnit

# The columns of tables, around those of the axes and of the numbers. All are there, so that scripts can
# ask for `failure` where nothing failed.
IDENTITY = ("sweep", "trial", "cell", "workload")
COURSE = ("seed", "repeat", "status")
ORIGIN = (
    "attempt", "started", "duration_s", "nodes", "hardware", "torch", "commit", "harness_commit",
    "parameter_digest", "order_digest", "violations", "failure",
)  # fmt: skip

KEPT_ENVIRONMENTS = 1024  # of which the fields are kept; a sweep has a few
# Fields of environments that comparisons leave out: what the key of the hardware has in it, what
# bears on no number, and lists whose content other fields have.
UNCOMPARED = re.compile(
    r"hardware\.(cpu|cpu_version|gpus|usable_cores)"
    r"|software\.(platform|packages\.(mlflow|submitit))|installed|repository\.(dirty|diff)"
)
# Fields of environments that all trials of a cell must share, or their mean is that of nothing.
SHARED_FIELDS = ("software.", "settings.", "harness.training", "hardware.driver")
UNRECORDED = "unrecorded"  # the status of a trial that is planned and has left no record
# Of trials that are not done, the worst first.
PROBLEMS = (UNRECORDED, "failed", "interrupted", "invalid")


@dataclass(frozen=True, kw_only=True)
class MetricPoint:
    """A value of the target metric, and the step after which it was evaluated."""

    step: Number  # optimizer steps
    value: float


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """What is known of one trial besides its axes, which are those of its cell."""

    sweep: str  # that ran it
    trial: str  # its id
    cell: str  # its cell's id
    workload: str  # the sweep's name for it
    seed: Number  # of parameters, data order and dropout
    repeat: Number  # tells trials of a cell and seed apart, from 0
    status: Status
    attempt: Ordinal  # how often it was started
    started: Moment  # when its last attempt began, seconds since the epoch
    ended: Moment
    nodes: Number  # how many machines its ranks ran on
    hardware: str | None = None  # the key of it, as baselines are filed by; None of one that failed
    torch: str | None = None  # its version
    commit: str | None = None  # of the sweep's repository, if any
    harness_commit: str | None = None
    # Of the parameters at the end: equal digests mean equal bits.
    parameter_digest: str | None = None
    order_digest: str | None = None  # of the order in which it saw its samples
    violations: str | None = None  # the rules of validity that it broke
    failure: str | None = None
    # By their names in `harness.records.numbers`; what was not measured is absent.
    numbers: Mapping[str, float]
    target: TargetMetric | None = None
    settled: bool | None = None  # whether steady state was reached; None where that can't be told
    lanes: Ordinal = 1  # in which trials ran at a time; equal numbers allow a comparison
    # In the test set, which says in what steps a metric of samples moves; None of a script.
    test_samples: Number | None = None
    # The evaluations that were better than all before them, so that every goal's first is there. A
    # baseline keeps none, nor hosts, and is of the same trials nevertheless.
    improvements: Sequence[MetricPoint] = field(default=(), compare=False)
    hosts: Sequence[str] = field(default=(), compare=False)  # none where they are not known

    @property
    def duration_s(self) -> float:
        """The seconds from its start to its end."""
        return self.ended - self.started

    @property
    def throughput_unit(self) -> ThroughputUnit:
        """The unit of its throughput: samples/s, or steps/s of a script that reports no samples."""
        if RATES["steps/s"] in self.numbers:
            return "steps/s"
        return "samples/s"

    @property
    def throughput(self) -> float | None:
        """Its throughput in the measured window, None if it was not measured."""
        return self.numbers.get(RATES[self.throughput_unit])

    @property
    def metric(self) -> float | None:
        """The target metric at the end, None if it was not evaluated."""
        if self.target is None:
            return None
        return self.numbers.get(final_name(self.target.name))


def trial_row(record: Record) -> TrialRow:
    """Return the row of a record; a trial that failed has few facts and numbers."""
    cell = record.trial.cell
    facts: dict[str, Any] = {}
    if record.environment is not None:
        facts |= _origin(record.environment, record.device)
    if record.rank0 is not None:
        facts |= _reported(record.rank0, cell)
    return TrialRow(
        sweep=record.sweep,
        trial=record.trial.id,
        cell=cell.id,
        workload=cell.workload.label,
        seed=record.trial.seed,
        repeat=record.trial.repeat,
        status=record.status,
        attempt=record.attempt,
        started=record.started,
        ended=record.ended,
        nodes=len(record.hosts),
        order_digest=record.order_digest,
        violations="; ".join(record.violations) or None,
        failure=None if record.failure is None else str(record.failure),
        numbers=record.numbers,
        lanes=record.lane.count,
        settled=record.settled,
        hosts=record.hosts,
        **facts,
    )


def _origin(environment: Environment, device: Device) -> dict[str, Any]:
    """Return the facts of a row on what its trial ran with."""
    repository, code = environment.repository, environment.code
    return {
        "hardware": machine_key(environment.hardware, device),
        "torch": environment.software.torch,
        "commit": None if repository is None else repository.commit,
        "harness_commit": None if code is None else code.commit,
    }


def _reported(report: Rank0Report, cell: Cell) -> dict[str, Any]:
    """Return the facts of a row that rank 0 has computed."""
    improvements: list[MetricPoint] = []
    best = -math.inf
    for evaluation in report.evaluations:
        value = evaluation.metrics[report.target.name]
        score = report.target.score(value)
        if score > best:
            improvements.append(MetricPoint(step=evaluation.step, value=value))
            best = score
    facts: dict[str, Any] = {
        "parameter_digest": report.parameter_digest,
        "test_samples": report.test_samples,
        "improvements": improvements,
    }
    # A script without evaluations has no target metric, and so none is missing.
    if report.evaluations or not cell.workload.is_script:
        facts["target"] = report.target
    return facts


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
        for trial in self.trials:
            if trial.target is not None:
                return trial.target
        return None

    @cached_property
    def hardware(self) -> Sequence[str]:
        """The keys of the hardware that trials ran on, each once.

        They are of CPU or GPUs and not of the host, as nodes of one kind are alike.
        """
        known = [trial.hardware for trial in self.trials if trial.hardware]
        return list(dict.fromkeys(known))

    @cached_property
    def measured_trials(self) -> Sequence[TrialRow]:
        """The trials of which throughput was measured."""
        return [trial for trial in self.trials if trial.throughput]

    @property
    def throughput_unit(self) -> ThroughputUnit:
        """The unit of its throughput: samples/s, or steps/s of a script that reports no samples."""
        for trial in self.trials:
            if trial.throughput_unit == "steps/s":
                return "steps/s"
        return "samples/s"

    @cached_property
    def numbers(self) -> Mapping[str, float]:
        """The numbers over its trials, as `harness.records.numbers` names them."""
        return over_trials([trial.numbers for trial in self.trials])

    @cached_property
    def log_throughputs(self) -> Sequence[float]:
        """The logarithm of the throughput of each measured trial."""
        logs = []
        for trial in self.trials:
            if trial.throughput:
                logs.append(math.log(trial.throughput))
        return logs

    @cached_property
    def independent_logs(self) -> Sequence[float]:
        """The log throughputs that count as independent values, where pairs do not cancel seeds.

        Repeats of a seed are averaged first and count once (`mean_by_seed`).
        """
        seeds = [trial.seed for trial in self.measured_trials]
        means = mean_by_seed(self.log_throughputs, seeds)
        return list(means.values())

    @cached_property
    def throughput(self) -> Interval | None:
        """The geometric mean of samples/s with its 95% interval over seeds; None if not measured.

        Fewer than `FEWEST_VALUES` seeds have a mean without an interval: two would have one of 25 times
        their standard error.
        """
        if not self.measured_trials:
            return None
        throughputs = list(map(math.exp, self.independent_logs))
        interval = geometric_mean_interval(throughputs)
        return _without_bounds_of_few(interval)

    @property
    def mean_throughput(self) -> float:
        """The geometric mean of samples/s, 0 if it was not measured."""
        return self.throughput.mean if self.throughput else 0.0

    @cached_property
    def metric_by_seed(self) -> Mapping[int, float]:
        """The target metric at the end by seed, each the mean of its repeats."""
        return mean_over_seeds(self.trials, lambda trial: trial.metric)

    @cached_property
    def metric(self) -> Interval | None:
        """The mean target metric with its 95% interval over seeds; None if it was not evaluated.

        A repeat of a seed computes the same but for the order of floating-point sums, so that
        repeats show nothing of how much the metric scatters, even where there are few seeds.
        """
        if not self.metric_by_seed:
            return None
        means = list(self.metric_by_seed.values())
        return _without_bounds_of_few(mean_interval(means))

    @cached_property
    def shared(self) -> Mapping[str, Sequence[str]]:
        """What its trials should have in common, each with its values."""
        shared = {"hardware": sorted(self.hardware)}
        for name, values in self.environment.items():
            if name.startswith(SHARED_FIELDS):
                shared[name] = sorted(values)
        return shared

    @property
    def mixed(self) -> Mapping[str, Sequence[str]]:
        """What its trials should have had in common and did not, each with its values."""
        return {name: values for name, values in self.shared.items() if len(values) > 1}

    @cached_property
    def conditions(self) -> Mapping[str, str]:
        """The code of its workload and what its trials ran with; a field has all of its values."""
        table = {}
        for name, value in code_fields(self.cell).items():
            table[name] = as_text(value)
        for name, values in self.environment.items():
            table[name] = " and ".join(sorted(values))
        return table

    @property
    def planned(self) -> int:
        """How many trials were asked for, as far as this result tells."""
        return len(self.trials) + sum(self.left_out.values())

    @property
    def status(self) -> str:
        """The worst status among its trials."""
        for status in PROBLEMS:
            if self.left_out.get(status):
                return status
        return "done" if self.trials else UNRECORDED

    def describe_left_out(self) -> str:
        """Return the trials that are not done: `2 failed, 1 invalid`, or nothing."""
        return ", ".join(f"{count} {status}" for status, count in self.left_out.items())


def mean_over_seeds(
    trials: Sequence[TrialRow],
    value_of: Callable[[TrialRow], float | None],
) -> dict[int, float]:
    """Return the mean of a value over the repeats of each seed, without the trials that lack it."""
    values, seeds = [], []
    for trial in trials:
        value = value_of(trial)
        if value is not None:
            values.append(value)
            seeds.append(trial.seed)
    return mean_by_seed(values, seeds)


def _without_bounds_of_few(interval: Interval) -> Interval:
    """Return an interval over seeds, without its bounds where there are too few of them."""
    if interval.count < FEWEST_VALUES:
        return replace(interval, bounds=None)
    return interval


def aggregate(records: Sequence[Record]) -> list[CellResult]:
    """Return the cells of some records in order of appearance, each with all its trials."""
    results = []
    for of_cell in group_by_cell(records).values():
        cell = of_cell[0].trial.cell
        results.append(cell_result(cell, of_cell))
    return results


def cell_result(
    cell: Cell,
    records: Sequence[Record],
    unrecorded: int = 0,
) -> CellResult:
    """Return the result of a cell from the records of its trials, and how many have left none.

    Trials that are not done are only counted, by their status.
    """
    trials = []
    left_out: Counter[str] = Counter()
    environments: dict[Environment | None, None] = {}  # an ordered set
    for record in records:
        if record.status == "done":
            trials.append(trial_row(record))
            environments[record.environment] = None
        else:
            left_out[record.status] += 1
    values: dict[str, list[str]] = {}
    for environment in filter(None, environments):
        for name, text in compared_fields(environment).items():
            of_name = values.setdefault(name, [])
            if text not in of_name:
                of_name.append(text)
    if unrecorded:
        left_out[UNRECORDED] = unrecorded
    return CellResult(
        cell=cell,
        trials=trials,
        left_out=dict(left_out),
        environment=values,
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
