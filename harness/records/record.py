"""Records: the JSON file that a trial leaves, and the part of it that each rank leaves before."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.core.paths import write_atomically
from harness.records.decode import FileFormat, decode_file, decode_text
from harness.records.environment import Environment
from harness.records.series import Series
from harness.spec.cell import Profiling, Trial

# MAJOR.MINOR; `harness.records.decode` says which changes raise which number. Each schema from 5.0 on has records in
# tests/records/schemas, which must always be readable.
SCHEMA = "5.0"
RECORD_FORMAT = FileFormat(
    name="record",
    schema=SCHEMA,
    remedy="harness run --force measures it again",
)
RANK_RESULT_FORMAT = FileFormat(name="rank's result")

# done: complete and to be believed
# invalid: complete, but its measurement is not to be believed
# failed: ended by an error
# interrupted: ended by a signal, and can be resumed
Status = Literal["done", "invalid", "failed", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a trial failed: the first error of the rank that caused it."""

    # The name of an exception (Interrupted is one of them), or Timeout, CollectiveTimeout, Killed, Exited, Lost,
    # Invalid; of a Slurm step also OutOfMemory, NodeFailure and NotStarted.
    kind: str
    message: str
    rank: int | None = None  # None where the cause is no single rank
    host: str | None = None
    log: str | None = None  # path relative to the trial's folder
    traceback: str | None = None
    at: float = 0.0  # when it happened, seconds since the epoch

    @property
    def bad_node(self) -> str | None:
        """The node that died and took the trial with it, None where that is not why."""
        return self.host if self.kind == "NodeFailure" else None

    def __str__(self) -> str:
        if self.rank is None:
            return f"{self.kind}: {self.message}"
        host = f" on {self.host}" if self.host else ""
        return f"rank {self.rank}{host}: {self.kind}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The test set's metrics after `step` optimizer steps."""

    step: int
    epoch: float
    metrics: Mapping[str, float]  # name -> value
    seconds: float  # that the evaluation took


@dataclass(frozen=True, kw_only=True)
class Target:
    """The metric that a workload is trained towards."""

    name: str
    higher_is_better: bool

    def best(self, evaluations: Sequence[Evaluation]) -> Evaluation | None:
        """Return the evaluation with the best value, the earliest among equals; None of none."""
        if not evaluations:
            return None
        choose = max if self.higher_is_better else min
        return choose(evaluations, key=lambda evaluation: evaluation.metrics[self.name])


@dataclass(frozen=True, kw_only=True)
class Rank0Report:
    """What rank 0 reports for all ranks once a trial is done."""

    target: Target
    steps_per_epoch: int
    parameter_count: int
    flops_per_sample: float
    evaluations: Sequence[Evaluation]
    parameter_digest: str  # of the parameters at the end
    environment: Environment
    checkpoint: str | None = None  # path relative to the trial's folder
    # Memory traffic as `harness.measure.traffic` counts it; None where it can't be counted.
    bytes_per_sample: float | None = None


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What torch.compile did at one rank."""

    graphs: int
    graph_breaks: Mapping[str, int]  # reason -> how often
    recompiles: int
    seconds: float  # that compiling took
    cache_hits: int
    cache_misses: int


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """What the loss scaling of fp16 did at one rank."""

    scale: float  # at the end
    skipped_steps: int  # whose gradients were not finite


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """What was sampled beside training at one rank, in its segments of nothing but training after the warm-up.

    `sample_times` and `readings` are samples from within segments. `shares` come from counters that are read at both
    ends of every segment, and so cover all of it. Joules and `metered_steps` are of those segments that are long enough
    for the GPU's energy counter (`harness.measure.telemetry.METERED`).
    """

    seconds: float  # of the segments
    steps: int  # optimizer steps in the segments
    sample_times: Series  # seconds since the epoch
    readings: Mapping[
        str, Series
    ]  # each as long as `sample_times`, NaN where unread; units are in the names
    shares: Mapping[str, float]  # cpu_use and cpu_steal of all cores; process_cpu in cores
    joules: float | None = None  # None where the GPU has no energy counter
    metered_steps: int = 0
    throttled: Mapping[str, float] | None = None  # reason -> share of samples; None where unknown
    # Processes of others on the GPU, as in "pid 123 python"; None where unknown.
    foreign_processes: Sequence[str] | None = None
    errors: Mapping[str, str] = field(default_factory=dict)  # reading -> the first error it raised


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """Where an attempt ended and the next one resumed."""

    step: int  # optimizer steps done
    at: float  # when the checkpoint was begun, seconds since the epoch
    signal: str | None  # that asked for the checkpoint; None if the attempt ended otherwise, later
    lost_seconds: (
        float  # until training could go on, with whatever was trained after the checkpoint
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
    step_phases: Mapping[str, Series] = field(default_factory=dict)  # phase -> seconds of each step
    elapsed: float | None = None  # seconds of its clock between two moments that all ranks share
    interruptions: Sequence[Interruption] = ()
    order_sums: Sequence[int] = (0, 0)  # of the samples that it saw; see `harness.training.order`
    compiled: Compiled | None = None  # None for eager
    loss_scale: LossScale | None = None  # None without loss scaling
    telemetry: Telemetry | None = None
    loader_workers: int = 0  # that delivered batches
    memory: Mapping[str, int] = field(
        default_factory=dict
    )  # bytes, as `PeakMemory.read` names them
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds
    rank0: Rank0Report | None = None  # None at all other ranks


@dataclass(frozen=True, kw_only=True)
class SlowestRank:
    """The rank that the others waited for."""

    rank: int
    host: str
    skew: float  # mean share of its time that another rank spent waiting for it


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The figures that a trial's samples come to; None for what could not be measured."""

    throughput: float | None  # samples/s over all ranks, in the measured window
    window_start: int | None  # first step of the window, counted from 0
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
    mfu_measured: float | None = None  # the same of the peak that `harness peak` measured


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a trial was run with that is no part of its cell: with these and the cell it can be run again."""

    sweep_file: str
    base_folder: str  # the folder that file names of user workloads are relative to
    seeds: Sequence[int]
    repeats: int
    checkpoint: Literal["none", "best"]
    profiling: Profiling | None
    timeout: float  # seconds that the trial could take
    launcher: Literal["torchrun", "slurm"]
    device: Literal["auto", "cpu", "cuda"]
    # Keys of the cluster profile that differ from their defaults, variables of the ranks included; secrets are redacted.
    profile: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Record:
    """The durable truth about one trial."""

    schema: str = SCHEMA
    sweep: str  # the sweep's name
    trial: Trial
    status: Status
    attempt: int  # counted from 1
    started: float  # seconds since the epoch
    ended: float
    failure: Failure | None
    violations: Sequence[str]  # the validity rules that it broke, and by how much
    previous_failures: Sequence[Failure]  # of the attempts before this one
    summary: Summary | None
    loss: Series | None  # mean over ranks at each step
    order_digest: str | None  # of the samples that all ranks saw, in their order
    ranks: Sequence[RankResult]
    rank0: Rank0Report | None
    phases: Mapping[str, float]  # seconds, of the rank that took longest
    settings: RunSettings | None = None

    @property
    def bad_nodes(self) -> list[str]:
        """The node of each attempt that was lost with its node."""
        failures = [*self.previous_failures, self.failure]
        return [failure.bad_node for failure in failures if failure and failure.bad_node]


def write_record(path: Path, record: Record | RankResult) -> None:
    """Write a record, or a rank's part of one; raises ValueError for numbers that JSON can't hold."""
    write_atomically(path, json.dumps(asdict(record), indent=1, allow_nan=False) + "\n")


def read_record(path: Path) -> Record:
    """Read a record; raises BadInput for a file that is missing, incomplete or of another schema."""
    return decode_file(Record, path, RECORD_FORMAT)


def read_record_if_exists(path: Path) -> Record | None:
    """Read a record, None where there is no file; raises BadInput as `read_record` does."""
    return read_record(path) if path.exists() else None


def parse_record(text: str, source: str) -> Record:
    """Decode the text of a record that comes from `source`; raises BadInput as `read_record` does."""
    return decode_text(Record, text, source, RECORD_FORMAT)


def read_rank_result(path: Path) -> RankResult:
    """Read what one rank left; raises BadInput for a file that is missing or incomplete."""
    return decode_file(RankResult, path, RANK_RESULT_FORMAT)
