"""Records: the JSON file that a trial leaves, and the part of it that each rank leaves before.

Each rank writes a RankResult when it ends, even by an error. The launcher assembles them into the
trial's Record (`harness.launch.assemble`), which is written before any tracker is asked. Raw
samples of every step are kept, as Series, so that every figure can be computed again.

What has the right types and an intact seal may still contradict itself, if a faulty program has put
it together. What readers rely on, such as series of equal lengths and figures that are those of
their series, is checked where a record is read.

Times of day are seconds since the epoch, of the clock of the machine that took them. What was not
measured is None, or absent, and never 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from harness.core.paths import TrialFolder, write_atomically
from harness.records import seal
from harness.records.checks import Amount, Duration, Moment, Number, Ordinal, Share
from harness.records.decode import (
    FileFormat,
    decode_content,
    decode_file,
    parse_json,
    read_json,
)
from harness.records.environment import Environment
from harness.records.series import Numbers, Series
from harness.spec.cell import Fingerprints, Profiling, Trial

# MAJOR.MINOR; `harness.records.decode` says which changes raise which number. Each schema from 5.0
# on has records in tests/records/schemas, which must always be readable. 5.1 has a seal, and 5.2
# the workload's code, fingerprints and variables as axes. 5.3 has validation sets, rules for
# stopping and confusions.
SCHEMA = "5.3"
RECORD_FORMAT = FileFormat(
    name="record",
    schema=SCHEMA,
    remedy="move it away and run the sweep again to measure it anew",
    sealed_since=1,
)
# Without a schema: the same version of the harness reads it, minutes later.
RANK_RESULT_FORMAT = FileFormat(
    name="rank's result", remedy="harness run --force measures it again", sealed_since=0
)
RECORD_FILE = TrialFolder(Path()).record_path.name
TRIAL_ID = re.compile(r".+-[0-9a-f]{10}-s-?\d+-r\d+")  # the name of a trial's folder

# The figures of a summary that the times of its steps come to, and by how much they may differ:
# another version of NumPy adds in another order.
WINDOW_FIGURES = ("throughput", "step_p50", "step_p90", "step_p99")
TOLERANCE = 1e-6

# done: complete and to be believed
# invalid: complete, but its measurement is not to be believed
# failed: ended by an error
# interrupted: ended by a signal, and can be resumed
Status = Literal["done", "invalid", "failed", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a trial failed: the first error of the rank that caused it."""

    # The name of an exception (Interrupted is one of them), or Timeout, CollectiveTimeout,
    # ConnectionLost, Unresponsive, Killed, Exited, Lost, Invalid; of a Slurm step also OutOfMemory,
    # NodeFailure, NotStarted and ControllerDown.
    kind: str
    message: str  # one line
    rank: Number | None = None  # None where the cause is no single rank
    host: str | None = None  # where the rank ran
    log: str | None = None  # the log to look into; path relative to the trial's folder
    traceback: str | None = None  # the end of Python's, if it is long
    at: Moment = 0.0  # when it happened, seconds since the epoch

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
    """The metrics after `step` optimizer steps."""

    step: Number  # optimizer steps so far
    epoch: Amount  # the same in epochs
    metrics: Mapping[str, float]  # name -> value, over the whole test set
    seconds: Duration  # that the evaluation took
    validation: Mapping[str, float] | None = None  # over the validation set; None without one

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


@dataclass(frozen=True, kw_only=True)
class Target:
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


@dataclass(frozen=True, kw_only=True)
class StopOutcome:
    """How a trial with a rule for stopping ended."""

    # patience, goal: what of the rule ended it; length: it trained for its whole length
    reason: Literal["patience", "goal", "length"]
    step: Number  # optimizer steps that were trained
    metric: Target  # that the rule looked at
    restored: bool  # whether the parameters at the end are those of the best evaluation


@dataclass(frozen=True, kw_only=True)
class Collective:
    """The collectives of one kind that rank 0 takes part in, in one optimizer step."""

    operation: str  # all_reduce, all_gather, reduce_scatter, all_to_all or broadcast
    dtype: str  # of the tensors, as in fp32
    ranks: Ordinal  # that take part
    calls: Ordinal
    # Of the whole tensors: what is reduced, or what each rank has gathered in the end.
    bytes: Number

    @property
    def sent_bytes(self) -> float:
        """Return the bytes that a rank sends if the ranks form a ring.

        That is the least for a tensor that is large: of n ranks, each sends (n - 1) / n of it, and
        twice as much to reduce it and have it everywhere. Backends may send more where it is small.
        """
        share = self.bytes * (self.ranks - 1) / self.ranks
        return 2 * share if self.operation == "all_reduce" else share


@dataclass(frozen=True, kw_only=True)
class Rank0Report:
    """What rank 0 reports for all ranks once a trial is done."""

    target: Target
    steps_per_epoch: Number  # optimizer steps
    parameter_count: Number  # of the whole model, also where ranks hold shards
    flops_per_sample: Amount  # of forward and backward, as the workload states them
    evaluations: Sequence[Evaluation]  # in their order
    parameter_digest: str  # of the parameters at the end
    environment: Environment
    # Of the best evaluation; path relative to the trial's folder. None where none was saved.
    checkpoint: str | None = None
    # Memory traffic as `harness.measure.traffic` counts it; None where it can't be counted.
    bytes_per_sample: Amount | None = None
    stop: StopOutcome | None = None  # None for a trial without a rule for stopping
    # What rank 0 communicates in an optimizer step; None where ranks don't communicate.
    collectives: Sequence[Collective] | None = None

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
        if not self.evaluations:
            return None
        if self.stop is not None and self.stop.restored:
            return self.best_evaluation
        return self.evaluations[-1]


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What torch.compile did at one rank."""

    graphs: Number  # that were compiled
    graph_breaks: Mapping[str, Number]  # reason -> how often
    recompiles: Number  # because a guard failed, such as another shape
    seconds: Amount  # that compiling took
    cache_hits: Number  # graphs whose code was in Inductor's cache
    cache_misses: Number


@dataclass(frozen=True, kw_only=True)
class Determinism:
    """What deterministic mode was in force with at one rank, from the first step to the last."""

    settings: Mapping[str, str]  # of torch and the environment, by their own names
    # What torch says of operations that it does not refuse, and that may vary all the same.
    warnings: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """What the loss scaling of fp16 did at one rank."""

    scale: Amount  # at the end
    skipped_steps: Number  # whose gradients were not finite


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """What was sampled beside training at one rank.

    It is of segments of nothing but training, after the warm-up. `sample_times` and `readings` are
    samples from within segments. `shares` come from counters that are read at both ends of every
    segment, and so cover all of it. Joules and `metered_steps` are of those segments that are long
    enough for the GPU's energy counter (`harness.measure.telemetry.METERED`).
    """

    seconds: Amount  # of the segments
    steps: Number  # optimizer steps in the segments
    sample_times: Series  # seconds since the epoch
    # Name -> values, as long as `sample_times` and NaN where unread. The names end in the unit, as
    # in gpu_power_w; those without one are shares.
    readings: Mapping[str, Series]
    # cpu_use and cpu_steal of all cores, cpu_wait of the time; host_cpu, trial_cpu and process_cpu
    # in cores. `harness.measure.host` explains them.
    shares: Mapping[str, float]
    joules: float | None = None  # None where the GPU has no energy counter
    metered_steps: Number = 0  # optimizer steps that `joules` were spent on
    throttled: Mapping[str, Share] | None = None  # reason -> share of samples; None where unknown
    # Processes of others on the GPU, as in "pid 123 python"; None where unknown.
    foreign_processes: Sequence[str] | None = None
    errors: Mapping[str, str] = field(default_factory=dict)  # reading -> the first error it raised


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """Where an attempt ended and the next one resumed."""

    step: Number  # optimizer steps done
    at: Moment  # when the checkpoint was begun, seconds since the epoch
    signal: str | None  # that asked for the checkpoint; None if the attempt ended otherwise, later
    # Until training could go on, with whatever was trained after the checkpoint.
    lost_seconds: Amount


@dataclass(frozen=True, kw_only=True)
class StepFingerprint:
    """The digests of what one rank computed in one step; see `harness.records.trace`."""

    step: Ordinal  # counted from 1
    digests: Mapping[str, str]  # phase -> digest of all its tensors


@dataclass(frozen=True, kw_only=True)
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
    elapsed: float | None = None  # seconds of its clock between two moments that all ranks share
    interruptions: Sequence[Interruption] = ()
    # Checkpoints that attempts did not go on from, and why: a line each, of rank 0 alone.
    refused_checkpoints: Sequence[str] = ()
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
    rank0: Rank0Report | None = None  # None at all other ranks
    fingerprints: RankFingerprints | None = None  # None where the sweep wants none

    @property
    def fingerprinted_steps(self) -> list[int]:
        """Return the steps that were fingerprinted and so not measured, counted from 0."""
        if self.fingerprints is None:
            return []
        return [fingerprint.step - 1 for fingerprint in self.fingerprints.steps]


@dataclass(frozen=True, kw_only=True)
class SlowestRank:
    """The rank that the others waited for."""

    rank: Number
    host: str
    skew: float  # mean share of its time that another rank spent waiting for it


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The figures that a trial's samples come to; None for what could not be measured.

    The measured window is what is left of the steps when warm-up and whatever came before steady
    state are taken off. A step takes as long as it takes the slowest rank.
    """

    throughput: Amount | None  # samples/s over all ranks, in the measured window
    window_start: Number | None  # first step of the window, counted from 0
    window_steps: (
        Number  # how many steps it has; after an interruption they are not all consecutive
    )
    # Whether steady state was reached; None if there were too few steps to tell.
    settled: bool | None
    step_p50: Amount | None  # the median time of a step in the window, seconds
    step_p90: Amount | None  # seconds
    step_p99: Amount | None  # seconds
    shares: Mapping[str, float]  # of the window's time over all ranks, by phase of the step
    slowest: SlowestRank | None  # None for one rank, and where communication can't be told apart
    final_loss: float | None  # mean over ranks, in training, of the last step
    final_metric: float | None  # the target metric of the parameters at the end, on the test set
    best_metric: float | None  # and at the best evaluation
    # Model FLOPs utilization: FLOPs of the model a second, as a share of the vendor's peak.
    mfu: Amount | None = None
    mfu_measured: Amount | None = None  # the same of the peak that `harness peak` measured


@dataclass(frozen=True, kw_only=True)
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
    attempt: Ordinal  # counted from 1
    started: Moment  # seconds since the epoch
    ended: Moment  # seconds since the epoch
    failure: Failure | None
    violations: Sequence[str]  # the validity rules that it broke, and by how much
    previous_failures: Sequence[Failure]  # of the attempts before this one
    summary: Summary | None
    loss: Series | None  # mean over ranks at each step
    order_digest: str | None  # of the samples that all ranks saw, in their order
    ranks: Sequence[RankResult]  # by rank; ranks that left nothing readable are missing
    rank0: Rank0Report | None
    phases: Mapping[str, Duration]  # phase of the trial -> seconds, of the rank that took longest
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
    """Write a record, or a rank's part of one, sealed; raises ValueError for what JSON can't hold.

    NaN may well occur in a Series, whose bytes are encoded. Anywhere else it would be a figure that
    readers take for a measurement.
    """
    write_atomically(path, seal.sealed_text(asdict(record)))


def read_record(path: Path) -> Record:
    """Read a record.

    Raises BadFile for a file that is missing, incomplete, of another major schema or changed after
    it was written, for figures that its own series contradict, and for the record of another trial
    than its folder is named after.
    """
    return _checked_record(read_json(path, RECORD_FORMAT), path)


def read_record_if_exists(path: Path) -> Record | None:
    """Read a record, None where there is no file; raises BadFile as `read_record` does."""
    if not path.exists():
        return None
    return read_record(path)


@dataclass(frozen=True, kw_only=True)
class RecordHeader:
    """What a record says of how its trial went, without what it measured."""

    trial: Trial
    status: Status
    attempt: Ordinal
    started: Moment
    ended: Moment
    failure: Failure | None
    violations: Sequence[str]
    previous_failures: Sequence[Failure]


HEADER_FIELDS = [header_field.name for header_field in fields(RecordHeader)]


def read_record_header(path: Path) -> RecordHeader:
    """Read the header of a record; raises BadFile as `read_record` does.

    The seal covers the whole record, so that a record that has one need not be decoded further,
    and no figure of the header depends on its series.
    """
    content = read_json(path, RECORD_FORMAT)
    if not isinstance(content, dict) or seal.KEY not in content:
        record = _checked_record(content, path)
        return RecordHeader(**{name: getattr(record, name) for name in HEADER_FIELDS})
    header = decode_content(RecordHeader, content, str(path), RECORD_FORMAT, is_part=True)
    problem = _misplacement(header.trial, path)
    if problem is not None:
        raise RECORD_FORMAT.error(path, f"not a valid record: {problem}")
    return header


def parse_record(text: str, source: str) -> Record:
    """Decode the text of a record, such as one from MLflow; raises BadFile as `read_record` does.

    `source` is what errors call the text.
    """
    return _checked_record(parse_json(text, source, RECORD_FORMAT), source)


def _checked_record(content: Any, source: Path | str) -> Record:
    """Return a record that agrees with itself and with its folder; raises BadFile."""
    record = decode_content(Record, content, str(source), RECORD_FORMAT)
    try:
        problem = _inconsistency(record) or _misplacement(record.trial, source)
    except ValueError as error:  # a series that is damaged
        problem = str(error)
    if problem is not None:
        raise RECORD_FORMAT.error(source, f"not a valid record: {problem}")
    return record


def _misplacement(trial: Trial, source: Path | str) -> str | None:
    """Return whether the record of a trial lies in the folder of another one, None if not.

    A record may lie anywhere else, as in a folder of records that somebody has collected.
    """
    if not isinstance(source, Path) or source.name != RECORD_FILE:
        return None
    folder = source.absolute().parent.name
    if folder == trial.id or not TRIAL_ID.fullmatch(folder):
        return None
    return f"trial: found {trial.id}; allowed: {folder}, whose folder it lies in"


def read_rank_result(path: Path) -> RankResult:
    """Read what one rank left.

    Raises BadFile for a file that is missing, incomplete or changed after it was written.
    """
    result = decode_file(RankResult, path, RANK_RESULT_FORMAT)
    try:
        problem = _rank_inconsistency(result)
    except ValueError as error:  # a series that is damaged
        problem = str(error)
    if problem is not None:
        raise RANK_RESULT_FORMAT.error(path, f"not a valid rank's result: {problem}")
    return result


def _inconsistency(record: Record) -> str | None:
    """Return the first contradiction in a record as `KEY: found …; allowed: …`, None without any.

    Raises ValueError for a series that is damaged.
    """
    problem = _status_problem(record) or _rank_problem(record)
    if problem is not None or record.summary is None:
        return problem
    for check in (_length_problem, _evaluation_problem, _loss_problem, _window_problem):
        problem = check(record)
        if problem is not None:
            return problem
    return None


def _status_problem(record: Record) -> str | None:
    """Return what a record with such a status can't have, or must have."""
    is_complete = record.status in ("done", "invalid")
    required = {
        "summary": is_complete,
        "loss": is_complete,
        "order_digest": is_complete,
        "failure": not is_complete,
    }
    for key, is_required in required.items():
        if (getattr(record, key) is not None) != is_required:
            state = "nothing" if is_required else "something"
            return f"{key}: found {state} in a trial that is {record.status}"
    if is_complete and record.rank0 is None:
        return f"rank0: found nothing in a trial that is {record.status}"
    if bool(record.violations) != (record.status == "invalid"):
        count = len(record.violations)
        return f"violations: found {count} in a trial that is {record.status}"
    return None


def _rank_problem(record: Record) -> str | None:
    """Return which ranks are missing, double or none of the trial's."""
    world_size = record.trial.cell.axes.world_size
    ranks = [result.rank for result in record.ranks]
    is_whole = len(ranks) == world_size and ranks == list(range(len(ranks)))
    if record.summary is not None and not is_whole:
        return f"ranks: found {_listed(ranks)}; allowed: all {world_size} of them, in order"
    if ranks != sorted(set(ranks)) or (ranks and ranks[-1] >= world_size):
        return f"ranks: found {_listed(ranks)}; allowed: each of {world_size} once, in order"
    for index, result in enumerate(record.ranks):
        problem = _rank_inconsistency(result)
        if problem is not None:
            return f"ranks[{index}].{problem}"
    return None


def _listed(ranks: Sequence[int]) -> str:
    """Return numbers of ranks in a line."""
    return ", ".join(map(str, ranks)) or "none"


def _rank_inconsistency(result: RankResult) -> str | None:
    """Return the first contradiction in what one rank left, None without any.

    Raises ValueError for a series that is damaged.
    """
    for series in (result.loss, result.step_seconds, *result.step_phases.values()):
        if series is not None:
            series.unpack()
    if result.telemetry is not None:
        return _telemetry_problem(result.telemetry)
    return None


def _telemetry_problem(telemetry: Telemetry) -> str | None:
    """Return which reading has another number of samples than there were, or which steps miss."""
    samples = len(telemetry.sample_times.unpack())
    for name, series in telemetry.readings.items():
        if len(series.unpack()) != samples:
            found = f"found {series.count} numbers; allowed: {samples}, as of sample_times"
            return f"telemetry.readings.{name}: {found}"
    if telemetry.joules is not None and telemetry.metered_steps == 0:
        return "telemetry.metered_steps: found 0; allowed: those that the joules were spent on"
    return None


def _length_problem(record: Record) -> str | None:
    """Return which series has another length than the trial of a complete record."""
    assert record.rank0 is not None
    assert record.loss is not None
    steps = record.trial.cell.length.in_steps(record.rank0.steps_per_epoch)
    problem = _stop_problem(record, steps)
    if problem is not None:
        return problem
    if record.rank0.stop is not None:
        steps = record.rank0.stop.step
    counts = {"loss": record.loss.count}
    for index, result in enumerate(record.ranks):
        series = {"loss": result.loss, "step_seconds": result.step_seconds}
        for phase, seconds in result.step_phases.items():
            series[f"step_phases.{phase}"] = seconds
        for key, numbers in series.items():
            counts[f"ranks[{index}].{key}"] = 0 if numbers is None else numbers.count
    for key, count in counts.items():
        if count != steps:
            return f"{key}: found {count} steps; allowed: the {steps} of the trial"
    return _step_problem(record, steps)


def _stop_problem(record: Record, length: int) -> str | None:
    """Return what of how a trial was stopped does not fit its cell, or its length in steps."""
    assert record.rank0 is not None
    stop = record.rank0.stop
    if (stop is None) != (record.trial.cell.stop is None):
        state = "nothing" if stop is None else "something"
        return f"rank0.stop: found {state}; its cell says otherwise"
    if stop is None:
        return None
    if stop.step > length or (stop.reason == "length" and stop.step != length):
        return f"rank0.stop.step: found {stop.step} by {stop.reason}; the length is {length}"
    return None


def _step_problem(record: Record, steps: int) -> str | None:
    """Return which step of an interruption or a fingerprint is none of the trial's."""
    for index, result in enumerate(record.ranks):
        if any(interruption.step > steps for interruption in result.interruptions):
            return f"ranks[{index}].interruptions: found a step after the last one, {steps}"
        chosen = result.fingerprinted_steps
        if chosen != record.ranks[0].fingerprinted_steps or any(step >= steps for step in chosen):
            problem = "found other steps than rank 0's, or one after the last"
            return f"ranks[{index}].fingerprints: {problem}"
    return None


def _evaluation_problem(record: Record) -> str | None:
    """Return which evaluation does not fit the trial, or which figure does not fit them."""
    assert record.rank0 is not None
    assert record.summary is not None
    report, target = record.rank0, record.rank0.target
    last_step = 0
    for index, evaluation in enumerate(report.evaluations):
        key = f"rank0.evaluations[{index}]"
        if target.name not in evaluation.metrics:
            return f"{key}.metrics.{target.name}: missing; it is the target metric"
        chosen_by = target.name if report.stop is None else report.stop.metric.name
        if chosen_by not in evaluation.deciding:
            return f"{key}: found no {chosen_by}, by which the best is chosen"
        assert record.loss is not None
        if not last_step <= evaluation.step <= record.loss.count:
            return f"{key}.step: found {evaluation.step}; allowed: {last_step} to the last one"
        last_step = evaluation.step
    final, best = report.final_evaluation, report.best_evaluation
    if final is None or best is None:
        return None
    figures = {
        "final_metric": final.metrics[target.name],
        "best_metric": best.metrics[target.name],
    }
    return _first_difference(record.summary, figures)


def _loss_problem(record: Record) -> str | None:
    """Return whether the losses of the trial are not the means of those of its ranks."""
    import numpy as np

    assert record.loss is not None
    assert record.summary is not None
    losses = record.loss.unpack()
    of_ranks = [result.loss.unpack() for result in record.ranks if result.loss is not None]
    means = np.stack(of_ranks).mean(axis=0, dtype=np.float64)
    # Most often they are equal to the last bit, which is seen ten times as fast.
    is_equal = np.array_equal(losses, means)
    if not is_equal and not np.allclose(losses, means, rtol=TOLERANCE, atol=0, equal_nan=True):
        return "loss: found other numbers than the means of its ranks' losses"
    if not len(losses):
        return None
    return _first_difference(record.summary, {"final_loss": float(losses[-1])})


def _window_problem(record: Record) -> str | None:
    """Return which figure of the measured window is not what the times of its steps come to.

    Where the trial was interrupted, the window has gaps that the record does not list, and only its
    size is checked.
    """
    summary = record.summary
    assert summary is not None
    assert record.loss is not None
    steps = record.loss.count
    start = summary.window_start
    if start is None:
        return _first_difference(summary, dict.fromkeys(WINDOW_FIGURES))
    if start + summary.window_steps > steps:
        found = f"found {summary.window_steps} from step {start} on"
        return f"summary.window_steps: {found}; allowed: up to the last step, {steps}"
    if any(result.interruptions for result in record.ranks):
        return None
    window = _timed_steps(record, start)
    if summary.window_steps != len(window):
        found = f"found {summary.window_steps} from step {start} on"
        allowed = f"all {len(window)} that were timed, up to the last step, {steps}"
        return f"summary.window_steps: {found}; allowed: {allowed}"
    return _first_difference(summary, _window_figures(record, window)) or _share_problem(
        record, window
    )


def _timed_steps(record: Record, start: int) -> Numbers:
    """Return which steps from `start` on were timed, as those are that were not fingerprinted."""
    import numpy as np

    assert record.loss is not None
    return np.setdiff1d(np.arange(start, record.loss.count), record.ranks[0].fingerprinted_steps)


def _window_figures(record: Record, window: Numbers) -> dict[str, float | None]:
    """Return the figures of the steps of a window, by their names in the summary."""
    import numpy as np

    seconds = _window_seconds([result.step_seconds for result in record.ranks], window)
    ordered = np.sort(seconds.max(axis=0))
    # As np.percentile has them, in a third of its time.
    positions = np.array((0.5, 0.9, 0.99)) * (len(ordered) - 1)
    percentiles = np.interp(positions, np.arange(len(ordered)), ordered)
    samples = seconds.shape[1] * record.trial.cell.axes.batch_size
    figures = (samples / seconds.sum(axis=1).max(), *percentiles)
    return {name: float(figure) for name, figure in zip(WINDOW_FIGURES, figures, strict=True)}


def _share_problem(record: Record, window: Numbers) -> str | None:
    """Return which phase of a step has another share of the window than its series come to."""
    import numpy as np

    assert record.summary is not None
    phases = record.ranks[0].step_phases
    shares = record.summary.shares
    if set(shares) != set(phases):
        return f"summary.shares: found {', '.join(shares)}; allowed: {', '.join(phases)}"
    total = _window_seconds([result.step_seconds for result in record.ranks], window).sum()
    for name, share in shares.items():
        seconds = _window_seconds([result.step_phases.get(name) for result in record.ranks], window)
        expected = float(seconds.sum(dtype=np.float64) / total)
        if not math.isclose(share, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            return f"summary.shares.{name}: found {share}; allowed: {expected}, as of its series"
    return None


def _window_seconds(series: Sequence[Series | None], window: Numbers) -> Numbers:
    """Return the seconds of the steps of a window, shape (ranks, steps)."""
    import numpy as np

    rows = [numbers.unpack()[window] for numbers in series if numbers is not None]
    return np.stack(rows)


def _first_difference(summary: Summary, figures: Mapping[str, float | None]) -> str | None:
    """Return which figure of a summary is another one than that which its trial's series give."""
    for name, expected in figures.items():
        figure = getattr(summary, name)
        if figure is None or expected is None:
            is_equal = figure is expected
        else:
            is_equal = math.isclose(figure, expected, rel_tol=TOLERANCE)
        if not is_equal:
            allowed = "nothing" if expected is None else f"{expected}"
            return f"summary.{name}: found {figure}; allowed: {allowed}, as of its series"
    return None
