"""Records: the JSON file that a trial leaves, and the part of it that each rank leaves first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.core.paths import write_atomically
from harness.records.restore import restore_file, restore_text
from harness.records.series import Series
from harness.spec.cell import Trial

SCHEMA = 4

# invalid: done, and its measurement is not to be believed; interrupted: by a signal, and can go on
Status = Literal["done", "invalid", "failed", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a trial failed: the first rank's own last error."""

    # An exception's name, Interrupted among them, or Timeout, CollectiveTimeout, Killed, Exited, Lost, Invalid; of a
    # Slurm step OutOfMemory, NodeFailure, NotStarted too.
    kind: str
    message: str
    rank: int | None = None
    host: str | None = None
    log: str | None = None  # relative to the trial's folder
    traceback: str | None = None
    at: float = 0.0  # seconds since the epoch

    @property
    def bad_node(self) -> str | None:
        """The node that died and took the trial with it, if that is why."""
        return self.host if self.kind == "NodeFailure" else None

    def __str__(self) -> str:
        where = (
            ""
            if self.rank is None
            else f"rank {self.rank}" + (f" on {self.host}" if self.host else "") + ": "
        )
        return f"{where}{self.kind}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The test set's metrics after `step` optimizer steps."""

    step: int
    epoch: float
    metrics: Mapping[str, float]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Target:
    """The metric that the workload is trained towards."""

    name: str
    higher_is_better: bool

    def best(self, evaluations: Sequence[Evaluation]) -> Evaluation | None:
        """The evaluation with the best value, the earliest among equals."""
        pick = max if self.higher_is_better else min
        return (
            pick(evaluations, key=lambda found: found.metrics[self.name]) if evaluations else None
        )


@dataclass(frozen=True, kw_only=True)
class Rank0Report:
    """What rank 0 knows for all ranks once the trial is done."""

    target: Target
    steps_per_epoch: int
    parameter_count: int  # how many
    flops_per_sample: float
    evaluations: Sequence[Evaluation]
    parameter_digest: str
    environment: Mapping[str, Any]
    checkpoint: str | None = None  # relative to the trial's folder
    bytes_per_sample: float | None = (
        None  # memory traffic by `measure.traffic`'s count; None where it can't be counted
    )


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What torch.compile did at one rank."""

    graphs: int
    graph_breaks: Mapping[str, int]  # reason -> how often
    recompiles: int
    seconds: float
    cache_hits: int
    cache_misses: int


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """What fp16's loss scaling did at one rank."""

    scale: float  # at the end
    skipped_steps: int  # steps whose gradients were not finite


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """What was seen beside training at one rank, in its stretches of nothing but training after the warm-up.

    `at` and `readings` are samples from within stretches. `shares` come from counters read at both ends of every
    stretch, and so cover all of it. Joules and `metered_steps` are of those stretches that are long enough for the
    GPU's energy counter (`harness.measure.telemetry.MIN_METERED_SECONDS`).
    """

    seconds: float  # of the stretches
    steps: int
    sample_times: Series  # seconds since the epoch
    readings: Mapping[str, Series]  # each as long as `at`, NaN where unread; units are in the names
    shares: Mapping[str, float]  # cpu_use and cpu_steal of all cores; process_cpu in cores
    joules: float | None = None
    metered_steps: int = 0
    throttled: Mapping[str, float] | None = (
        None  # share of samples by reason; None if it can't be told
    )
    foreign_processes: Sequence[str] | None = (
        None  # processes of others on the GPU, "pid 123 python"; None if it can't be told
    )
    errors: Mapping[str, str] = field(
        default_factory=dict
    )  # reading -> the first error that it raised


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """Where an attempt was taken up by the next one."""

    step: int  # optimizer steps done
    at: float  # when the checkpoint was begun, seconds since the epoch
    signal: str | None  # the signal that asked for it; None if the attempt ended otherwise, later
    lost_seconds: (
        float  # seconds until training could go on, with whatever was trained after the checkpoint
    )


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """What one rank leaves in `rank<N>.json`."""

    rank: int
    host: str
    pid: int
    entered_at: float  # when the worker's code began, seconds since the epoch
    failure: Failure | None = None
    loss: Series | None = None  # this rank's mean loss at each step
    step_seconds: Series | None = None
    step_phases: Mapping[str, Series] = field(
        default_factory=dict
    )  # the parts of each step, in seconds
    elapsed: float | None = (
        None  # seconds of its own clock between two moments that all ranks share
    )
    interruptions: Sequence[Interruption] = ()
    order_sums: Sequence[int] = (0, 0)
    compiled: Compiled | None = None  # None for eager
    loss_scale: LossScale | None = None  # None without loss scaling
    telemetry: Telemetry | None = None
    loader_workers: int = 0  # that were seen to deliver batches
    memory: Mapping[str, int] = field(
        default_factory=dict
    )  # bytes, as `PeakMemory.read` names them
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds
    rank0: Rank0Report | None = None


@dataclass(frozen=True, kw_only=True)
class SlowestRank:
    """The rank that the others waited for."""

    rank: int
    host: str
    skew: float  # the share of its time that another rank spent waiting for it, in the mean


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What the numbers of a trial come to; None for what could not be measured."""

    throughput: float | None  # samples/s over all ranks, in the measured window
    window_start: int | None  # its first step, counted from 0
    window_steps: int
    settled: (
        bool | None
    )  # whether steady state was reached; None if there were too few steps to tell
    step_p50: float | None  # seconds
    step_p90: float | None
    step_p99: float | None
    shares: Mapping[str, float]  # of the window's time over all ranks, by phase of the step
    slowest: SlowestRank | None  # None for one rank, and where communication can't be told apart
    final_loss: float | None
    final_metric: float | None  # the target metric at the last evaluation
    best_metric: float | None  # and at the best one
    mfu: float | None = None  # model FLOPs utilization, of the vendor's peak
    mfu_measured: float | None = None  # and of the peak that `harness peak` measured


@dataclass(frozen=True, kw_only=True)
class Record:
    """One trial's durable truth. `loss` is the mean over ranks; `ranks` holds what belongs to each."""

    schema: int = SCHEMA
    sweep: str
    trial: Trial
    status: Status
    attempt: int
    started: float  # seconds since the epoch
    ended: float
    failure: Failure | None
    violations: Sequence[str]  # the rules of validity that it broke, and by how much
    previous_failures: Sequence[Failure]  # of the attempts before this one
    summary: Summary | None
    loss: Series | None
    order_digest: str | None
    ranks: Sequence[RankResult]
    rank0: Rank0Report | None
    phases: Mapping[str, float]  # seconds, of the rank that took longest

    @property
    def bad_nodes(self) -> list[str]:
        """One for each attempt that was lost with its node."""
        return [
            failure.bad_node
            for failure in (*self.previous_failures, self.failure)
            if failure and failure.bad_node
        ]


def write_record(path: Path, value: Record | RankResult) -> None:
    write_atomically(path, json.dumps(asdict(value), indent=1, allow_nan=False) + "\n")


def read_record(path: Path) -> Record:
    """Raises BadInput for what is no record, not whole, or of another schema."""
    return restore_file(Record, path, "record", SCHEMA)


def read_record_if_exists(path: Path) -> Record | None:
    """The same, None where there is no file."""
    return read_record(path) if path.exists() else None


def parse_record(text: str, place: str) -> Record:
    """As `read`, of a record's text, which comes from `place`."""
    return restore_text(Record, text, place, "record", SCHEMA)


def read_rank_result(path: Path) -> RankResult:
    """Raises BadInput."""
    return restore_file(RankResult, path, "rank's result")
