"""The results of a cell's trials, in the form in which records and baselines are compared.

`of_trials` reduces the records of a cell to the few numbers that comparisons need; `of_trial` does
that of one trial, and `join` merges the results of the same cell. MLflow keeps the parts and joins
them again whenever a trial is added.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from harness.analysis.cells import group_by_cell
from harness.hardware.machine import Device, machine_key
from harness.measure.summary import measured_window, slowest_rank_seconds
from harness.records.bounds import Amount, Moment, Number, Ordinal
from harness.records.differences import as_text, environment_fields
from harness.records.environment import Environment
from harness.records.record import Numbers, Rank0Report, Record, Summary, TargetMetric
from harness.spec.cell import Cell, ThroughputUnit
from harness.statistics.interval import (
    Interval,
    geometric_mean_interval,
    mean_by_seed,
    mean_interval,
)

UNKNOWN = "unknown"
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
STATUSES = (
    UNRECORDED,
    "failed",
    "interrupted",
    "invalid",
    "done",
)  # of trials, the worst first


@dataclass(frozen=True, kw_only=True)
class MetricPoint:
    """A value of the target metric, and the step after which it was evaluated."""

    step: Number  # optimizer steps
    value: float


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """One trial that is done."""

    sweep: str  # the name of its sweep
    seed: Number  # of its initial weights and its data order
    repeat: Number  # counts the trials of the same cell and seed, from 0
    started: Moment  # seconds since the epoch
    ended: Moment  # seconds since the epoch
    throughput: Amount | None  # samples/s in the measured window; None if it was not measured
    settled: bool | None  # whether steady state was reached; None if there were too few steps
    window_steps: Number  # steps of the measured window
    metric: float | None  # the target metric at the end
    parameter_digest: str  # of the parameters at the end: equal digests mean equal bits
    order_digest: str | None  # of the order in which it saw its samples
    lanes: Ordinal = 1  # in which trials ran at a time; equal numbers allow a comparison
    throughput_unit: ThroughputUnit = "samples/s"
    # The evaluations that were better than all before them, so that every goal's first is there. A
    # baseline keeps none, and is of the same trials nevertheless.
    improvements: Sequence[MetricPoint] = field(default=(), compare=False)
    # In the test set, which says in what steps a metric of samples moves; None of a script.
    test_samples: Number | None = field(default=None, compare=False)
    # The names of its machines, none where they are unknown. A baseline has none of them.
    nodes: Sequence[str] = field(default=(), compare=False)


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
    target: TargetMetric | None  # None where no trial is done
    # The keys of the hardware that trials ran on, each once: of CPU or GPUs and not of the host, as nodes of
    # one kind are alike.
    hardware: Sequence[str]
    trials: Sequence[TrialResult]  # those that are done
    left_out: Mapping[str, Number]  # the number of trials that are not done, by status
    # What trials ran with, in detail: each value of each field of `harness.records.differences` once.
    environment: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # Of a baseline, the times at which it was measured; the last one is that of `trials`.
    sessions: Sequence[Session] = ()

    @cached_property
    def measured_trials(self) -> Sequence[TrialResult]:
        """The trials of which throughput was measured."""
        return [trial for trial in self.trials if trial.throughput]

    @property
    def throughput_unit(self) -> ThroughputUnit:
        """The unit of its throughput: samples/s, or steps/s of a script that reports no samples."""
        units = {trial.throughput_unit for trial in self.trials}
        return "steps/s" if "steps/s" in units else "samples/s"

    @cached_property
    def trials_by_number(self) -> Mapping[tuple[int, int], TrialResult]:
        """The trials by seed and repeat, by which those of two cells are paired."""
        return {(trial.seed, trial.repeat): trial for trial in self.trials}

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
        """Return what its trials should have had in common and did not, each with its values."""
        shared = {"hardware": self.hardware}
        for name, values in self.environment.items():
            if name.startswith(SHARED_FIELDS):
                shared[name] = values
        return {name: sorted(values) for name, values in shared.items() if len(values) > 1}

    @property
    def has_unsteady_trials(self) -> bool:
        """Whether a trial never reached a steady state, as far as that can be told."""
        return any(trial.settled is False for trial in self.trials)

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

    @property
    def is_recorded(self) -> bool:
        """Whether any of its trials has left a record."""
        return self.planned > self.left_out.get(UNRECORDED, 0)


def aggregate(records: Sequence[Record]) -> list[CellResult]:
    """Return the cells of some records in order of appearance, each with all its trials."""
    return list(map(of_trials, group_by_cell(records).values()))


def join(parts: Sequence[CellResult]) -> list[CellResult]:
    """Merge partial results of the same cells, in order of appearance."""
    by_cell: dict[str, list[CellResult]] = {}
    for part in parts:
        by_cell.setdefault(part.cell.id, []).append(part)
    return list(map(_merge, by_cell.values()))


def _merge(parts: Sequence[CellResult]) -> CellResult:
    """Return one cell's result from parts of it; conditions that differ are all kept."""
    left_out: Counter[str] = Counter()
    trials: list[TrialResult] = []
    target = None
    for part in parts:
        for status, count in part.left_out.items():
            left_out[status] += count
        trials.extend(part.trials)
        target = target or part.target
    return CellResult(
        cell=parts[0].cell,
        target=target,
        hardware=list(dict.fromkeys(key for part in parts for key in part.hardware)),
        trials=trials,
        left_out=dict(left_out),
        environment=_merge_values([part.environment for part in parts]),
    )


def _merge_values(tables: Sequence[Mapping[str, Sequence[str]]]) -> Mapping[str, Sequence[str]]:
    """Return each value of each name once."""
    distinct: list[Mapping[str, Sequence[str]]] = []  # usually one, which all trials have
    for table in tables:
        if table not in distinct:
            distinct.append(table)
    if len(distinct) == 1:
        return distinct[0]
    merged: dict[str, dict[str, None]] = {}
    for table in distinct:
        for name, values in table.items():
            merged.setdefault(name, {}).update(dict.fromkeys(values))
    return {name: list(values) for name, values in merged.items()}


def of_trial(record: Record) -> CellResult:
    """Return what a single trial contributes to its cell."""
    return of_trials([record])


def of_trials(records: Sequence[Record]) -> CellResult:
    """Return the result of a cell from the records of its trials.

    Trials that are not done are only counted, by their status.
    """
    left_out: Counter[str] = Counter()
    trials: list[TrialResult] = []
    origins: list[tuple[Environment, Device]] = []  # usually one, which all trials have
    target = None
    for record in records:
        if record.status != "done":
            left_out[record.status] += 1
            continue
        assert record.rank0 is not None
        if not record.trial.cell.workload.is_script or record.rank0.evaluations:
            target = (
                target or record.rank0.target
            )  # of a script that reports none, nothing is missing
        trials.append(_trial_result(record, record.rank0))
        assert record.environment is not None
        origin = (record.environment, record.device)
        if origin not in origins:
            origins.append(origin)
    hardware: dict[str, None] = {}  # an ordered set
    environments = []
    for environment, device in origins:
        hardware[machine_key(environment.hardware, device)] = None
        environments.append(_environment_values(environment))
    return CellResult(
        cell=records[0].trial.cell,
        target=target,
        hardware=list(hardware),
        trials=trials,
        left_out=dict(left_out),
        environment=_merge_values(environments),
    )


def without_trials(cell: Cell, status: str, trials: int) -> CellResult:
    """Return the result of `trials` trials of a cell that are not done: they are only counted."""
    return CellResult(cell=cell, target=None, hardware=[], trials=[], left_out={status: trials})


def _trial_result(record: Record, report: Rank0Report) -> TrialResult:
    """Return the numbers of a trial that is done."""
    assert record.summary is not None
    return TrialResult(
        sweep=record.sweep,
        seed=record.trial.seed,
        repeat=record.trial.repeat,
        started=record.started,
        ended=record.ended,
        throughput=record.summary.throughput,
        throughput_unit=record.summary.throughput_unit,
        settled=record.summary.settled,
        window_steps=record.summary.window_steps,
        metric=record.summary.final_metric,
        parameter_digest=report.parameter_digest,
        order_digest=record.order_digest,
        improvements=_improvements(record, report),
        test_samples=report.test_samples,
        lanes=record.lane.count,
        nodes=_nodes(record, record.summary),
    )


def _nodes(record: Record, summary: Summary) -> tuple[str, ...]:
    """Return the names of a trial's nodes, sorted; none unless the summary names every node.

    It names the slowest of very many nodes, and none where communication can't be told apart.
    """
    if len(summary.node_seconds) != record.nodes:
        return ()
    return tuple(sorted(summary.node_seconds))


def _improvements(record: Record, report: Rank0Report) -> list[MetricPoint]:
    """Return the evaluations whose target metric was better than that of all before them."""
    points: list[MetricPoint] = []
    best = -math.inf
    for evaluation in report.evaluations:
        value = evaluation.metrics[report.target.name]
        if report.target.score(value) > best:
            points.append(MetricPoint(step=evaluation.step, value=value))
            best = report.target.score(value)
    return points


def window_seconds(record: Record) -> Numbers:
    """Return the seconds of each measured step of the rank that took longest, shape (steps,)."""
    ranks = record.ranks
    return slowest_rank_seconds(ranks, measured_window(ranks, record.trial.cell).mask)


@lru_cache(KEPT_ENVIRONMENTS)
def _environment_values(environment: Environment) -> Mapping[str, Sequence[str]]:
    """Return the fields of `compared_fields`, each with its value; trials share the table."""
    return {name: [value] for name, value in compared_fields(environment).items()}


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


def rounded(value: float) -> float:
    """Return a number rounded to six significant digits, for files and pages that people read."""
    return float(f"{value:.6g}")
