"""Records: the JSON file that a trial leaves, and the part of it that each rank leaves before.

Each rank writes a RankResult when it ends, even by an error. The launcher assembles them into the
trial's Record (`harness.launch.assemble`), which is written before any tracker is asked. Raw
samples of every step are kept, as Series, so that every figure can be computed again.

Times of day are seconds since the epoch, of the clock of the machine that took them. What was not
measured is None, or absent, and never 0.
"""

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

# MAJOR.MINOR; `harness.records.decode` says which changes raise which number. Each schema from 5.0
# on has records in tests/records/schemas, which must always be readable.
SCHEMA = "5.0"
RECORD_FORMAT = FileFormat(
    name="record",
    schema=SCHEMA,
    remedy="harness run --force measures it again",
)
# Without a schema: the same version of the harness reads it, minutes later.
RANK_RESULT_FORMAT = FileFormat(name="rank's result")

# done: complete and to be believed
# invalid: complete, but its measurement is not to be believed
# failed: ended by an error
# interrupted: ended by a signal, and can be resumed
Status = Literal["done", "invalid", "failed", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a trial failed: the first error of the rank that caused it."""

    # The name of an exception (Interrupted is one of them), or Timeout, CollectiveTimeout, Killed,
    # Exited, Lost, Invalid; of a Slurm step also OutOfMemory, NodeFailure, NotStarted and
    # ControllerDown.
    kind: str
    message: str  # one line
    rank: int | None = None  # None where the cause is no single rank
    host: str | None = None  # where the rank ran
    log: str | None = None  # the log to look into; path relative to the trial's folder
    traceback: str | None = None  # the end of Python's, if it is long
    at: float = 0.0  # when it happened, seconds since the epoch

    @property
    def bad_node(self) -> str | None:
        """Return the node that died and took the trial with it, None where that is not why."""
        if self.kind == "NodeFailure":
            return self.host
        return None

    def __str__(self) -> str:
        if self.rank is None:
            return f"{self.kind}: {self.message}"
        host = ""
        if self.host:
            host = f" on {self.host}"
        return f"rank {self.rank}{host}: {self.kind}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The test set's metrics after `step` optimizer steps."""

    step: int  # optimizer steps so far
    epoch: float  # the same in epochs
    metrics: Mapping[str, float]  # name -> value, over the whole test set
    seconds: float  # that the evaluation took


@dataclass(frozen=True, kw_only=True)
class Target:
    """The metric that a workload is trained towards."""

    name: str  # of a metric of the evaluations
    higher_is_better: bool  # false for losses and errors

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
    steps_per_epoch: int  # optimizer steps
    parameter_count: int  # of the whole model, also where ranks hold shards
    flops_per_sample: float  # of forward and backward, as the workload states them
    evaluations: Sequence[Evaluation]  # in their order
    parameter_digest: str  # of the parameters at the end
    environment: Environment
    # Of the best evaluation; path relative to the trial's folder. None where none was saved.
    checkpoint: str | None = None
    # Memory traffic as `harness.measure.traffic` counts it; None where it can't be counted.
    bytes_per_sample: float | None = None


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What torch.compile did at one rank."""

    graphs: int  # that were compiled
    graph_breaks: Mapping[str, int]  # reason -> how often
    recompiles: int  # because a guard failed, such as another shape
    seconds: float  # that compiling took
    cache_hits: int  # graphs whose code was in Inductor's cache
    cache_misses: int


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """What the loss scaling of fp16 did at one rank."""

    scale: float  # at the end
    skipped_steps: int  # whose gradients were not finite


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """What was sampled beside training at one rank.

    It is of segments of nothing but training, after the warm-up. `sample_times` and `readings` are
    samples from within segments. `shares` come from counters that are read at both ends of every
    segment, and so cover all of it. Joules and `metered_steps` are of those segments that are long
    enough for the GPU's energy counter (`harness.measure.telemetry.METERED`).
    """

    seconds: float  # of the segments
    steps: int  # optimizer steps in the segments
    sample_times: Series  # seconds since the epoch
    # Name -> values, as long as `sample_times` and NaN where unread. The names end in the unit, as
    # in gpu_power_w; those without one are shares.
    readings: Mapping[str, Series]
    shares: Mapping[str, float]  # cpu_use and cpu_steal of all cores; process_cpu in cores
    joules: float | None = None  # None where the GPU has no energy counter
    metered_steps: int = 0  # optimizer steps that `joules` were spent on
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
    # Until training could go on, with whatever was trained after the checkpoint.
    lost_seconds: float


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """What one rank leaves in `rank<N>.json`.

    The fields up to `failure` are known before anything can fail. A rank that fails also has the
    series of the steps that it trained; the rest is only known at the end.
    """

    rank: int  # over all nodes
    host: str  # the name of its machine
    pid: int
    entered_at: float  # when the worker's code began, seconds since the epoch
    failure: Failure | None = None  # what it raised, None if it got to the end
    loss: Series | None = None  # this rank's mean loss at each step
    step_seconds: Series | None = None  # of each step since the start, earlier attempts included
    step_phases: Mapping[str, Series] = field(default_factory=dict)  # phase -> seconds of each step
    elapsed: float | None = None  # seconds of its clock between two moments that all ranks share
    interruptions: Sequence[Interruption] = ()
    order_sums: Sequence[int] = (0, 0)  # of the samples that it saw; see `harness.training.order`
    compiled: Compiled | None = None  # None for eager
    loss_scale: LossScale | None = None  # None without loss scaling
    telemetry: Telemetry | None = None
    loader_workers: int = 0  # that delivered batches
    # Bytes, as `PeakMemory.read` names them.
    memory: Mapping[str, int] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)  # phase of the trial -> seconds
    rank0: Rank0Report | None = None  # None at all other ranks


@dataclass(frozen=True, kw_only=True)
class SlowestRank:
    """The rank that the others waited for."""

    rank: int
    host: str
    skew: float  # mean share of its time that another rank spent waiting for it


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The figures that a trial's samples come to; None for what could not be measured.

    The measured window is what is left of the steps when warm-up and whatever came before steady
    state are taken off. A step takes as long as it takes the slowest rank.
    """

    throughput: float | None  # samples/s over all ranks, in the measured window
    window_start: int | None  # first step of the window, counted from 0
    window_steps: int  # how many steps it has; after an interruption they are not all consecutive
    # Whether steady state was reached; None if there were too few steps to tell.
    settled: bool | None
    step_p50: float | None  # the median time of a step in the window, seconds
    step_p90: float | None  # seconds
    step_p99: float | None  # seconds
    shares: Mapping[str, float]  # of the window's time over all ranks, by phase of the step
    slowest: SlowestRank | None  # None for one rank, and where communication can't be told apart
    final_loss: float | None  # mean over ranks, in training, of the last step
    final_metric: float | None  # the target metric at the last evaluation
    best_metric: float | None  # and at the best one
    # Model FLOPs utilization: FLOPs of the model a second, as a share of the vendor's peak.
    mfu: float | None = None
    mfu_measured: float | None = None  # the same of the peak that `harness peak` measured


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a trial was run with that is no part of its cell.

    With these and the cell it can be run again.
    """

    sweep_file: str  # the path of it, which may have changed since
    base_folder: str  # the folder that file names of user workloads are relative to
    seeds: Sequence[int]  # of the sweep; workloads may have others
    repeats: int  # trials of each cell and seed
    checkpoint: Literal["none", "best"]
    profiling: Profiling | None  # None: no trace
    timeout: float  # seconds that the trial could take
    launcher: Literal["torchrun", "slurm"]
    device: Literal["auto", "cpu", "cuda"]
    # Keys of the cluster profile that differ from their defaults, variables of the ranks included;
    # secrets are redacted.
    profile: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Record:
    """The durable truth about one trial: its last attempt, and why those before it failed.

    `summary`, `loss` and `order_digest` are only there for a trial that finished, and `failure`
    only for one that did not.
    """

    schema: str = SCHEMA
    sweep: str  # the sweep's name
    trial: Trial  # with its whole cell, so that the record can be read without the sweep
    status: Status
    attempt: int  # counted from 1
    started: float  # seconds since the epoch
    ended: float  # seconds since the epoch
    failure: Failure | None
    violations: Sequence[str]  # the validity rules that it broke, and by how much
    previous_failures: Sequence[Failure]  # of the attempts before this one
    summary: Summary | None
    loss: Series | None  # mean over ranks at each step
    order_digest: str | None  # of the samples that all ranks saw, in their order
    ranks: Sequence[RankResult]  # by rank; ranks that left nothing readable are missing
    rank0: Rank0Report | None
    phases: Mapping[str, float]  # phase of the trial -> seconds, of the rank that took longest
    settings: RunSettings | None = None  # the runner adds them to the assembled record

    @property
    def bad_nodes(self) -> list[str]:
        """Return the node of each attempt that was lost with its node, in the order of attempts."""
        nodes: list[str] = []
        for failure in (*self.previous_failures, self.failure):
            if failure is not None and failure.bad_node:
                nodes.append(failure.bad_node)
        return nodes


def write_record(path: Path, record: Record | RankResult) -> None:
    """Write a record, or a rank's part of one; raises ValueError for numbers that JSON can't hold.

    NaN may well occur in a Series, whose bytes are encoded. Anywhere else it would be a figure that
    readers take for a measurement.
    """
    write_atomically(path, json.dumps(asdict(record), indent=1, allow_nan=False) + "\n")


def read_record(path: Path) -> Record:
    """Read a record.

    Raises BadInput for a file that is missing, incomplete or of another major schema.
    """
    return decode_file(Record, path, RECORD_FORMAT)


def read_record_if_exists(path: Path) -> Record | None:
    """Read a record, None where there is no file; raises BadInput as `read_record` does."""
    if not path.exists():
        return None
    return read_record(path)


def parse_record(text: str, source: str) -> Record:
    """Decode the text of a record, such as one from MLflow; raises BadInput as `read_record` does.

    `source` is what errors call the text.
    """
    return decode_text(Record, text, source, RECORD_FORMAT)


def read_rank_result(path: Path) -> RankResult:
    """Read what one rank left; raises BadInput for a file that is missing or incomplete."""
    return decode_file(RankResult, path, RANK_RESULT_FORMAT)
