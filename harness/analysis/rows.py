"""Rows: the facts and the numbers of a trial, flat.

Tables of trials, data frames, cells, baselines, MLflow and pytest all take what is in a row, so that a
number is the same in all of them to the last digit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.hardware.machine import machine_key
from harness.records.bounds import Moment, Number, Ordinal
from harness.records.numbers import RATES, final_name
from harness.records.record import Rank0Report, Record, Status, TargetMetric
from harness.sweep.cell import Cell, ThroughputUnit

# The columns of tables, around those of the axes and of the numbers. All are there, so that scripts can
# ask for `failure` where nothing failed.
IDENTITY = ("sweep", "trial", "cell", "workload")
COURSE = ("seed", "repeat", "status")
ORIGIN = (
    "attempt", "started", "duration_s", "nodes", "hardware", "torch", "commit", "harness_commit",
    "parameter_digest", "order_digest", "violations", "failure",
)  # fmt: skip


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
    parameter_digest: str | None = (
        None  # of the parameters at the end: equal digests mean equal bits
    )
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
        return "steps/s" if RATES["steps/s"] in self.numbers else "samples/s"

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
    trial, environment, report = record.trial, record.environment, record.rank0
    repository = None if environment is None else environment.repository
    code = None if environment is None else environment.code
    return TrialRow(
        sweep=record.sweep,
        trial=trial.id,
        cell=trial.cell.id,
        workload=trial.cell.workload.label,
        seed=trial.seed,
        repeat=trial.repeat,
        status=record.status,
        attempt=record.attempt,
        started=record.started,
        ended=record.ended,
        nodes=record.nodes,
        hardware=None if environment is None else machine_key(environment.hardware, record.device),
        torch=None if environment is None else environment.software.torch,
        commit=None if repository is None else repository.commit,
        harness_commit=None if code is None else code.commit,
        parameter_digest=None if report is None else report.parameter_digest,
        order_digest=record.order_digest,
        violations="; ".join(record.violations) or None,
        failure=None if record.failure is None else str(record.failure),
        numbers=record.numbers,
        target=None if report is None else _target(trial.cell, report),
        settled=None if record.summary is None else record.summary.settled,
        lanes=record.lane.count,
        test_samples=None if report is None else report.test_samples,
        improvements=() if report is None else _improvements(report),
        hosts=_hosts(record),
    )


def _target(cell: Cell, report: Rank0Report) -> TargetMetric | None:
    """Return the target metric; None of a script that reports none, of which nothing is missing."""
    if cell.workload.is_script and not report.evaluations:
        return None
    return report.target


def _hosts(record: Record) -> tuple[str, ...]:
    """Return the names of a trial's nodes, sorted; none unless its record names every one.

    It names the slowest of very many nodes, and none where communication can't be told apart.
    """
    if record.summary is None or len(record.summary.node_seconds) != record.nodes:
        return ()
    return tuple(sorted(record.summary.node_seconds))


def _improvements(report: Rank0Report) -> list[MetricPoint]:
    """Return the evaluations whose target metric was better than that of all before them."""
    points: list[MetricPoint] = []
    best = -math.inf
    for evaluation in report.evaluations:
        value = evaluation.metrics[report.target.name]
        if report.target.score(value) > best:
            points.append(MetricPoint(step=evaluation.step, value=value))
            best = report.target.score(value)
    return points
