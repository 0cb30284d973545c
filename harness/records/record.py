"""Records: what a trial leaves, and the part of it that each rank leaves before.

Each rank writes a RankResult when it ends, even by an error. The launcher assembles them into the
trial's Record (`harness.launch.assemble`), which is written before any tracker is asked. Raw
samples of every step are kept, so that every figure can be computed again.

A record on disk is a JSON header of some kilobytes, which commands read, and a file of columns
next to it, which has what grows with ranks and steps (`harness.records.files`). The seal of the
header covers its digest. Its classes have slots, because commands hold thousands of
headers.

Times of day are seconds since the epoch, of the clock of the machine that took them. What was not
measured is None, or absent, and never 0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from harness.core.import_path import ROOT
from harness.records.assignment import Lane
from harness.records.environment import Environment
from harness.records.format import Amount, Moment, Number, Ordinal
from harness.sweep.cell import Trial

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[Any]
else:
    Numbers = Any  # msgspec leaves arrays as they are

SCHEMA = 9

# done: complete and to be believed
# invalid: complete, but its measurement is not to be believed
# failed: ended by an error
# interrupted: ended by a signal, and can be resumed
Status = Literal["done", "invalid", "failed", "interrupted"]

# What ranks report of which another is the cause: it is gone, or they waited for it in vain.
PEER_FAILURES = ("ConnectionLost", "CollectiveTimeout")

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
    metrics: Mapping[str, float]  # name -> value, over the whole test set
    seconds: float | None  # that the evaluation took; None of a script
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


LOSS = TargetMetric(name="loss", higher_is_better=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class StopOutcome:
    """How a trial with a rule for stopping ended."""

    # patience, goal: what of the rule ended it; length: it trained for its whole length
    reason: Literal["patience", "goal", "length"]
    step: Number  # optimizer steps that were trained


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank0Report:
    """What rank 0 reports for all ranks once a trial is done."""

    target: TargetMetric
    steps_per_epoch: Number  # optimizer steps
    # Of forward and backward, as the workload states them or torch counts them; None where neither can.
    flops_per_sample: Amount | None = None
    evaluations: tuple[Evaluation, ...]  # in their order
    parameter_digest: str  # of the parameters at the end
    # Of the best evaluation; path relative to the trial's folder. None where none was saved.
    checkpoint: str | None = None
    # As the workload states it; None where samples are no sequences of tokens.
    tokens_per_sample: Amount | None = None
    stop: StopOutcome | None = None  # None for a trial without a rule for stopping
    training_began_at: Moment  # seconds since the epoch; of one that was resumed, the first time
    test_samples: Number | None = None  # in the test set; None of a script

    @property
    def best_evaluation(self) -> Evaluation | None:
        """Return the best evaluation by the target metric, None without any."""
        return self.target.best(self.evaluations)


@dataclass(frozen=True, kw_only=True, slots=True)
class Telemetry:
    """What was sampled during training at one rank.

    It is of segments of nothing but training, after the warm-up. `readings` are samples from within
    segments. `shares` come from counters that are read at both ends of every segment, and so cover all
    of it.
    """

    # Name of a number -> values, a sample a second, NaN where unread.
    readings: Mapping[str, Numbers] = field(default_factory=dict, compare=False)
    # cpu_steal of all cores, cpu_wait of the time; host_cpu and process_cpu in cores.
    # `harness.measure.telemetry` explains them.
    shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruption:
    """Where an attempt ended and the next one resumed."""

    step: Number  # optimizer steps done
    at: Moment  # when the checkpoint was begun, seconds since the epoch
    signal: str | None  # that asked for the checkpoint; None if the attempt ended otherwise, later
    # Until training could go on, with whatever was trained after the checkpoint.
    lost_seconds: Amount


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """What one rank leaves in `rank<N>.json`.

    The fields up to `failure` are known before anything can fail. A rank that fails also has the
    series of the steps that it trained; the rest is only known at the end.
    """

    rank: Number  # over all nodes
    host: str  # the name of its machine
    entered_at: Moment  # when the worker's code began, seconds since the epoch
    failure: Failure | None = None  # what it raised, None if it got to the end
    # The arrays, of which rows of equal ranks compare unequal: each step's mean loss at this rank, the
    # seconds of each step since the start, earlier attempts included, and those of each phase of it.
    loss: Numbers | None = field(default=None, compare=False)
    step_seconds: Numbers | None = field(default=None, compare=False)
    step_phases: Mapping[str, Numbers] = field(default_factory=dict, compare=False)
    # Steps, counted from 0, that are not measured: a loader may have fetched for them in a pause.
    refilled_steps: Sequence[Number] = ()
    interruptions: Sequence[Interruption] = ()
    # Checkpoints that attempts did not resume from, and why: a line each.
    refused_checkpoints: Sequence[str] = ()
    unsaved: Sequence[str] = ()  # saves of any kind that failed, and why: a line each
    # Of the samples that it saw; see `harness.training.order`.
    order_sums: Sequence[Number] = (0, 0)
    random_digest: str | None = None  # of its random generators at the end; None of a script
    telemetry: Telemetry = field(default_factory=Telemetry)
    # What it has counted, by the names of the trial's numbers: memory, and what torch.compile and loss
    # scaling did.
    numbers: dict[str, float] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)  # phase of the trial -> seconds
    rank0: Rank0Report | None = None  # None at all other ranks, as is the next one
    environment: Environment | None = None
    samples_per_step: Amount | None = None  # that a script reports at this rank, in the mean


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """What a trial was run with that is no part of its cell.

    With these and the cell it can be run again.
    """

    sweep_file: str  # the path of it, which may have changed since
    base_folder: str  # the folder that file names of user workloads are relative to
    checkpoint: Literal["none", "best"]
    saves_at_intervals: bool  # whether trials save checkpoints to resume from; a script does not
    timeout: Amount  # seconds that the trial could take
    launcher: Literal["torchrun", "slurm"]
    device: Literal["auto", "cpu", "cuda"]
    forkserver: bool
    environment: Mapping[str, str]  # variables of the profile, without secrets
    slurm: Mapping[str, Any]  # keys of the profile that bear on a result; none for another launcher


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a trial: the part of its record that no other trial shares.

    `order_digest` is only there for a trial that finished, and `failure` only for one that did not.
    """

    sweep: str  # the sweep's name
    status: Status
    attempt: Ordinal  # counted from 1
    started: Moment  # seconds since the epoch
    ended: Moment  # seconds since the epoch
    failure: Failure | None
    violations: tuple[str, ...] = ()  # the validity rules that it broke, and by how much
    previous_failures: tuple[Failure, ...]  # of the attempts before this one
    order_digest: str | None  # of the samples that all ranks saw, in their order; None of a script
    rank0: Rank0Report | None
    # Phase of the trial -> seconds, of the rank that took longest.
    phases: Mapping[str, float] = field(default_factory=dict)
    # Every number that tables, MLflow and reports show, by the names of `harness.records.numbers`.
    numbers: Mapping[str, float] = field(default_factory=dict)
    device: Literal["cpu", "cuda"] = "cpu"  # that it ran on
    hosts: tuple[str, ...] = ()  # the names of the nodes that its ranks ran on, sorted
    # Whether its steps became steady; None of a trial that failed, or was too short to tell.
    settled: bool | None = None
    interruptions: tuple[Interruption, ...] = ()  # all ranks stop after the same step
    # Checkpoints that attempts did not go on from, or that could not be written, and why.
    checkpoint_problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # such as which rank the others waited for
    lane: Lane = field(default_factory=Lane)  # that it ran in

    @property
    def is_complete(self) -> bool:
        """Whether the trial has got to its end, and so has numbers."""
        return self.status in ("done", "invalid")


@dataclass(frozen=True, kw_only=True, slots=True)
class Record(Outcome):
    """The durable truth about one trial: its last attempt, and why those before it failed."""

    trial: Trial  # with its whole cell, so that the record can be read without the sweep
    environment: Environment | None  # of rank 0; None unless `rank0` is there
    settings: RunSettings | None = None  # that it was run with
    # Returns what grows with ranks and steps: raises BadFile where its file is missing or damaged.
    load_ranks: Callable[[], Sequence[RankResult]] = field(compare=False, repr=False)

    @property
    def ranks(self) -> Sequence[RankResult]:
        """The results of the ranks, in their order; ranks that left nothing readable are missing."""
        return self.load_ranks()

    @property
    def loss(self) -> Numbers | None:
        """The mean loss over ranks at each step, shape (steps,); None unless the trial finished."""
        if not self.is_complete:
            return None
        return mean_loss(self.load_ranks())


def mean_loss(ranks: Sequence[RankResult]) -> Numbers:
    """Return the mean loss over ranks that trained equally long, of each step, float64, shape (steps,).

    The mean needs no weights because the ranks' parts of a global batch are equally large. NaN stands
    for a step of which a rank, of a script, has reported nothing.
    """
    import numpy as np  # here, because a plan reads no losses and should start at once

    losses = np.array([rank.loss for rank in ranks], dtype=np.float64)
    is_known = ~np.isnan(losses)
    sums = np.where(is_known, losses, 0.0).sum(axis=0)
    counts = is_known.sum(axis=0)
    means: Numbers = np.full(len(sums), np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means
