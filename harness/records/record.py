"""Records: what a trial leaves, and the part of it that each rank leaves before.

Each rank writes a RankResult when it ends, even by an error. The launcher assembles them into the
trial's Record (`harness.launch.assemble`), which is written before any tracker is asked. Raw
samples of every step are kept, as Series, so that every figure can be computed again.

A record on disk is a JSON header of some kilobytes, which commands read, and a file of columns
next to it, which has what grows with ranks and steps (`harness.records.files`). The seal of the
header covers the digests of all columns. Its classes have slots, because commands hold thousands of
headers.

Times of day are seconds since the epoch, of the clock of the machine that took them. What was not
measured is None, or absent, and never 0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from harness.core.import_path import ROOT
from harness.records.bounds import Amount, Duration, Moment, Number, Ordinal, RankCount, Share
from harness.records.company import Lane
from harness.records.environment import Environment
from harness.records.series import Series
from harness.spec.cell import Fingerprints, Profiling, ThroughputUnit, Trial

# MAJOR.MINOR; `harness.records.decode` says which changes raise which number. Each schema with this
# major number has records in tests/records/schemas, which must always be readable.
SCHEMA = "7.0"

# permutation: all indexes at once; keyed: computed index by index; shards: a few files at a time;
# stream: as they come
# done: complete and to be believed
# invalid: complete, but its measurement is not to be believed
# failed: ended by an error
# interrupted: ended by a signal, and can be resumed
Status = Literal["done", "invalid", "failed", "interrupted"]

# What ranks report of which another is the cause: it is gone, or they waited for it in vain.
PEER_FAILURES = {
    "ConnectionLost",
    "CollectiveTimeout",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
}

# In a traceback, the file and the line of a call.
FRAME = re.compile(r'^  File "([^"]+)", line (\d+)', re.MULTILINE)
INSTALLED = re.compile(r"/(site|dist)-packages/|/lib/python3")
NOT_OWN = ("<", f"{ROOT}/harness/", f"{ROOT}/workloads/")  # what the paths of other code begin with


def own_frame(trace: str) -> tuple[str, int] | None:
    """Return the path and the line of the last call of a traceback in the user's own code.

    That is neither code of the harness nor of an installed package, which may have been called from
    there. None without one.
    """
    for path, line in reversed(FRAME.findall(trace)):
        if not path.startswith(NOT_OWN) and not INSTALLED.search(path):
            return path, int(line)
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why a trial failed: the first error of the rank that caused it."""

    # The name of an exception (Interrupted is one of them), or Timeout, CollectiveTimeout,
    # ConnectionLost, Unresponsive, Hang, Killed, Exited, Lost, Invalid; of a Slurm step also OutOfMemory,
    # NodeFailure, NotStarted and ControllerDown.
    kind: str
    message: str  # one line
    rank: Number | None = None  # None where the cause is no single rank
    host: str | None = None  # where the rank ran
    log: str | None = None  # the log to look into; path relative to the trial's folder
    traceback: str | None = None  # the end of Python's, if it is long
    at: Moment = 0.0  # when it happened, seconds since the epoch
    # When its attempt was launched, and the attempt's number; None of a trial's last attempt.
    began_at: Moment | None = None
    attempt: Ordinal | None = None

    @property
    def own_line(self) -> str | None:
        """Return where the user's own code was when it failed, as in `lm.py:12`, None elsewhere."""
        frame = own_frame(self.traceback or "")
        if frame is None:
            return None
        path, line = frame
        return f"{os.path.relpath(path)}:{line}"

    def __str__(self) -> str:
        """Return the error with the rank, after the line of the user's own code that it came from."""
        where = f"{self.own_line}: " if self.own_line else ""
        if self.rank is None:
            return f"{where}{self.kind}: {self.message}"
        host = ""
        if self.host:
            host = f" on {self.host}"
        return f"{where}rank {self.rank}{host}: {self.kind}: {self.message}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The metrics after `step` optimizer steps."""

    step: Number  # optimizer steps so far
    epoch: Amount  # the same in epochs
    metrics: Mapping[str, float]  # name -> value, over the whole test set
    seconds: Duration | None  # that the evaluation took; None of a script
    validation: Mapping[str, float] | None = None  # over the validation set; None without one
    started_at: Moment  # seconds since the epoch

    @property
    def deciding(self) -> Mapping[str, float]:
        """Return the metrics by which the best evaluation is chosen, and when training stops.

        They are those of the validation set if there is one, so that the test set decides nothing.
        """
        if self.validation is None:
            return self.metrics
        return self.validation

    @property
    def all_metrics(self) -> dict[str, float]:
        """Return the metrics of both sets, those of the validation set as `validation_NAME`."""
        values = dict(self.metrics)
        for name, value in (self.validation or {}).items():
            values[f"validation_{name}"] = value
        return values


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetMetric:
    """A metric that a workload is trained towards, or that evaluations are chosen by."""

    name: str  # of a metric of the evaluations
    higher_is_better: bool  # false for losses and errors

    def score(self, value: float) -> float:
        """Return a value of the metric such that a greater one is better."""
        return value if self.higher_is_better else -value

    def best(self, evaluations: Sequence[Evaluation]) -> Evaluation | None:
        """Return the evaluation with the best value, the earliest among equals; None of none."""
        if not evaluations:
            return None
        return max(evaluations, key=lambda evaluation: self.score(evaluation.deciding[self.name]))


@dataclass(frozen=True, kw_only=True, slots=True)
class StopOutcome:
    """How a trial with a rule for stopping ended."""

    # patience, goal: what of the rule ended it; length: it trained for its whole length
    reason: Literal["patience", "goal", "length"]
    step: Number  # optimizer steps that were trained
    metric: TargetMetric  # that the rule looked at


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank0Report:
    """What rank 0 reports for all ranks once a trial is done."""

    target: TargetMetric
    steps_per_epoch: Number  # optimizer steps
    parameter_count: Number  # of the whole model, also where ranks hold shards
    # Of forward and backward, as the workload states them or torch counts them; None where neither can.
    flops_per_sample: Amount | None
    evaluations: tuple[Evaluation, ...]  # in their order
    parameter_digest: str  # of the parameters at the end
    # Of the best evaluation; path relative to the trial's folder. None where none was saved.
    checkpoint: str | None = None
    # As the workload states it; None where samples are no sequences of tokens.
    tokens_per_sample: Amount | None = None
    stop: StopOutcome | None = None  # None for a trial without a rule for stopping
    # When rank 0 began, and when training did, seconds since the epoch. Of a trial that was resumed
    # it is the first attempt that counts.
    began_at: Moment
    training_began_at: Moment
    train_samples: Number | None = None  # in the training set; None of a script, as is the next one
    test_samples: Number | None = None  # in the test set

    @property
    def best_evaluation(self) -> Evaluation | None:
        """Return the best evaluation, None without any.

        The rule for stopping says by which metric; without a rule, it is the target.
        """
        metric = self.target if self.stop is None else self.stop.metric
        return metric.best(self.evaluations)

    @property
    def final_evaluation(self) -> Evaluation | None:
        """Return the evaluation of the parameters at the end, None without any."""
        return self.evaluations[-1] if self.evaluations else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """What torch.compile did at one rank."""

    graphs: Number  # that were compiled
    graph_breaks: Mapping[str, Number]  # reason -> how often
    recompiles: Number  # because a guard failed, such as another shape
    seconds: Amount  # that compiling took
    cache_hits: Number  # graphs whose code was in Inductor's cache
    cache_misses: Number


@dataclass(frozen=True, kw_only=True, slots=True)
class Determinism:
    """What deterministic mode was in force with at one rank, from the first step to the last."""

    settings: Mapping[str, str]  # of torch and the environment, by their own names
    # What torch says of operations that it does not refuse, and that may vary all the same.
    warnings: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LossScale:
    """What the loss scaling of fp16 did at one rank."""

    scale: Amount  # at the end
    skipped_steps: Number  # whose gradients were not finite


@dataclass(frozen=True, kw_only=True, slots=True)
class Telemetry:
    """What was sampled during training at one rank.

    It is of segments of nothing but training, after the warm-up. `sample_times` and `readings` are
    samples from within segments. `shares` come from counters that are read at both ends of every
    segment, and so cover all of it.
    """

    seconds: Amount  # of the segments
    steps: Number  # optimizer steps in the segments
    sample_times: Series  # seconds since the epoch
    # Name -> values, as long as `sample_times` and NaN where unread. The names end in the unit, as
    # in gpu_power_w; those without one are shares.
    readings: Mapping[str, Series]
    # cpu_use and cpu_steal of all cores, cpu_wait of the time; host_cpu and process_cpu in cores.
    # `harness.measure.host` explains them.
    shares: Mapping[str, float]
    # That `steps` took, by the energy between samples; None where the GPU has no energy counter.
    joules: float | None = None
    throttled: Mapping[str, Share] | None = None  # reason -> share of samples; None where unknown
    # Processes of others on the GPU, as in "pid 123 python"; None where unknown.
    foreign_processes: Sequence[str] | None = None
    errors: Mapping[str, str] = field(default_factory=dict)  # reading -> the first error it raised


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruption:
    """Where an attempt ended and the next one resumed."""

    step: Number  # optimizer steps done
    at: Moment  # when the checkpoint was begun, seconds since the epoch
    signal: str | None  # that asked for the checkpoint; None if the attempt ended otherwise, later
    # Until training could go on, with whatever was trained after the checkpoint.
    lost_seconds: Amount


@dataclass(frozen=True, kw_only=True, slots=True)
class Saves:
    """The checkpoints that a rank has saved at intervals, over all attempts that are in the record."""

    count: Number = 0  # that are whole
    blocked_seconds: Duration = 0.0  # that training stood still for them
    # From the copy in memory to the flushed file, while training went on.
    writing_seconds: Duration = 0.0
    bytes: Number = 0  # of this rank's part of the last one, which the copy in memory takes too
    # Saves of any kind that could not be written, and why: a line each, of rank 0 alone.
    failed: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFingerprint:
    """The digests of what one rank computed in one step; see `harness.records.trace`."""

    step: Ordinal  # counted from 1
    digests: Mapping[str, str]  # phase -> digest of all its tensors


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFingerprints:
    """What one rank computed at the steps that the sweep chose."""

    steps: Sequence[StepFingerprint]  # in their order
    file: str  # the digests of single tensors; path relative to the trial's folder
    file_digest: str  # SHA-256 of that file


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """What one rank leaves in `rank<N>.json`.

    The fields up to `failure` are known before anything can fail. A rank that fails also has the
    series of the steps that it trained; the rest is only known at the end.
    """

    rank: Number  # over all nodes
    host: str  # the name of its machine
    pid: Number
    entered_at: Moment  # when the worker's code began, seconds since the epoch
    failure: Failure | None = None  # what it raised, None if it got to the end
    loss: Series | None = None  # this rank's mean loss at each step
    step_seconds: Series | None = None  # of each step since the start, earlier attempts included
    step_phases: Mapping[str, Series] = field(default_factory=dict)  # phase -> seconds of each step
    # Steps, counted from 0, that are not measured: a loader may have fetched for them in a pause.
    refilled_steps: Sequence[Number] = ()
    interruptions: Sequence[Interruption] = ()
    # Checkpoints that attempts did not go on from, and why: a line each, of rank 0 alone.
    refused_checkpoints: Sequence[str] = ()
    saves: Saves | None = None  # None without checkpoints at intervals and failed saves
    order_sums: Sequence[Number] = (
        0,
        0,
    )  # of the samples that it saw; see `harness.training.order`
    compiled: Compiled | None = None  # None for eager
    loss_scale: LossScale | None = None  # None without loss scaling
    determinism: Determinism | None = None  # None unless the trial was deterministic
    telemetry: Telemetry | None = None
    loader_workers: Number = 0  # that delivered batches
    # Bytes, as `PeakMemory.read` names them.
    memory: Mapping[str, Number] = field(default_factory=dict)
    phases: Mapping[str, Duration] = field(default_factory=dict)  # phase of the trial -> seconds
    rank0: Rank0Report | None = None  # None at all other ranks, as is the next one
    environment: Environment | None = None
    fingerprints: RankFingerprints | None = None  # None where the sweep wants none
    samples_per_step: Amount | None = None  # that a script reports at this rank, in the mean

    @property
    def fingerprinted_steps(self) -> list[int]:
        """Return the steps that were fingerprinted and so not measured, counted from 0."""
        if self.fingerprints is None:
            return []
        return [fingerprint.step - 1 for fingerprint in self.fingerprints.steps]


@dataclass(frozen=True, kw_only=True, slots=True)
class TelemetryAcross:
    """What the telemetry of all ranks comes to."""

    # Name -> mean over samples, then over ranks, of readings that every rank has.
    readings: Mapping[str, float]
    shares: Mapping[str, float]  # mean over ranks, of those that every rank has
    # Reason -> share of samples, at the worst rank: one slow GPU slows all ranks down.
    throttled: Mapping[str, Share]
    foreign_processes: Number | None  # at the rank with most; None where a driver lists none
    joules_per_step: float | None  # of all ranks' GPUs; None unless every rank has a counter
    # The lowest and the highest clock of a GPU's multiprocessors while it trained, in hertz, at the rank
    # where they are furthest apart; None where no GPU reports it.
    sm_clock_range: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AcrossRanks:
    """What the results of all ranks come to, for readers that need no single rank.

    It is as large for a thousand ranks as for one.
    """

    count: RankCount  # of ranks that left a readable result
    nodes: RankCount  # that they ran on
    ranks_per_node: RankCount  # of the node with most
    # Bytes of the rank that took most, as `PeakMemory.read` names them, and what training took.
    memory: Mapping[str, Number]
    training_bytes: int | None  # None unless it is known of every rank
    compiled: Compiled | None  # each number of the rank with most; None for eager
    loss_scale: LossScale | None  # which all ranks share
    may_vary: tuple[str, ...]  # what torch said of operations in deterministic mode, each text once
    interruptions: tuple[Interruption, ...]  # of rank 0: all ranks stop after the same step
    refused_checkpoints: tuple[str, ...]  # of rank 0
    saves: Saves | None = None  # of rank 0; None without checkpoints at intervals and failed saves
    telemetry: TelemetryAcross | None  # None unless every rank has some


class RankResults(Sequence[RankResult]):
    """The results of a trial's ranks, in their order; ranks that left nothing readable are missing.

    Those of a record on disk are loaded when one is looked at, which raises BadFile where they are
    missing or damaged, or contradict the record. `across` and the length need none of them.
    """

    __slots__ = ("_load", "across")

    def __init__(self, load: Callable[[], Sequence[RankResult]], across: AcrossRanks) -> None:
        self.across = across
        self._load = load

    def __len__(self) -> int:
        return self.across.count

    @overload
    def __getitem__(self, index: int) -> RankResult: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RankResult]: ...
    def __getitem__(self, index: int | slice) -> RankResult | Sequence[RankResult]:
        return self._load()[index]

    def __iter__(self) -> Iterator[RankResult]:
        return iter(self._load())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RankResults):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RankResults(count={len(self)})"

    def __deepcopy__(self, memo: object) -> RankResults:
        """Return the ranks themselves, as nothing can change them."""
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowestRank:
    """The rank that the others waited for."""

    rank: Number
    host: str
    skew: float  # mean share of its time that another rank spent waiting for it


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """The figures that a trial's samples come to; None for what could not be measured.

    The measured window is what is left of the steps when warm-up and whatever came before steady
    state are taken off. A step takes as long as it takes the slowest rank.
    """

    # Over all ranks, in the measured window, in `throughput_unit`.
    throughput: Amount | None = None
    window_start: Number | None = None  # first step of the window, counted from 0
    # How many steps it has; after an interruption they are not all consecutive.
    window_steps: Number
    # Whether steady state was reached; None if there were too few steps to tell.
    settled: bool | None
    step_p50: Amount | None = None  # the median time of a step in the window, seconds
    step_p90: Amount | None = None  # seconds
    step_p99: Amount | None = None  # seconds
    # By phase of the step, of the time over all ranks of `phase_steps` steps, which a long trial samples.
    shares: Mapping[str, float] = field(default_factory=dict)
    phase_steps: Number = 0
    # None for one rank, and where communication can't be told apart.
    slowest: SlowestRank | None = None
    # By node, the seconds of a step of its slowest rank, those in communication left out. Of many
    # nodes the slowest; empty where ranks communicate and that can't be told apart.
    node_seconds: Mapping[str, Amount] = field(default_factory=dict)
    final_loss: float | None  # mean over ranks, in training, of the last step
    final_metric: float | None  # the target metric of the parameters at the end, on the test set
    best_metric: float | None  # and at the best evaluation
    # Model FLOPs utilization: FLOPs of the model a second, as a share of the vendor's peak.
    mfu: Amount | None = None
    mfu_measured: Amount | None = None  # the same of the peak that `harness peak` measured
    throughput_unit: ThroughputUnit = "samples/s"  # steps/s where samples are not known
    # Of all ranks, as a script reports them; None where they are the cell's batch size.
    samples_per_step: Amount | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """What a trial was run with that is no part of its cell.

    With these and the cell it can be run again.
    """

    sweep_file: str  # the path of it, which may have changed since
    base_folder: str  # the folder that file names of user workloads are relative to
    seeds: Sequence[int]  # of the sweep; workloads may have others
    repeats: Ordinal  # trials of each cell and seed
    checkpoint: Literal["none", "best"]
    profiling: Profiling | None  # None: no trace
    timeout: Amount  # seconds that the trial could take
    launcher: Literal["torchrun", "slurm"]
    device: Literal["auto", "cpu", "cuda"]
    # Keys of the cluster profile that differ from their defaults, variables of the ranks included;
    # secrets are redacted.
    profile: Mapping[str, Any]
    fingerprints: Fingerprints | None = None  # None: of no step
    checkpoint_every: str | None = None  # None: 10m under Slurm, otherwise never


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a trial: the part of its record that no other trial shares.

    `summary` and `order_digest` are only there for a trial that finished, and `failure` only for one
    that did not.
    """

    sweep: str  # the sweep's name
    status: Status
    attempt: Ordinal  # counted from 1
    started: Moment  # seconds since the epoch
    ended: Moment  # seconds since the epoch
    failure: Failure | None
    violations: tuple[str, ...]  # the validity rules that it broke, and by how much
    previous_failures: tuple[Failure, ...]  # of the attempts before this one
    summary: Summary | None
    order_digest: str | None  # of the samples that all ranks saw, in their order; None of a script
    rank0: Rank0Report | None
    phases: Mapping[str, Duration]  # phase of the trial -> seconds, of the rank that took longest
    # When the first of the attempts started that this one continues or repeats; None: it is the first.
    first_started: Moment | None = None
    lane: Lane = field(default_factory=Lane)  # that it ran in


@dataclass(frozen=True, kw_only=True, slots=True)
class Record(Outcome):
    """The durable truth about one trial: its last attempt, and why those before it failed."""

    trial: Trial  # with its whole cell, so that the record can be read without the sweep
    environment: Environment | None  # of rank 0; None unless `rank0` is there
    settings: RunSettings | None = None  # the runner adds them to the assembled record
    ranks: RankResults
    loss: Series | None  # mean over ranks at each step; None unless the trial finished
