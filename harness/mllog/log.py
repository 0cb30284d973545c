"""Writes a finished trial as lines of MLPerf's log format, from its record.

The format is that of MLCommons' package `mlperf-logging`: `:::MLLOG` and a JSON object a line. Its
rules for training 6.1 say which keys there must be (`harness.mllog.checker` asks their checker).
The times are those of the events, which rank 0 noted between segments of training; facts that are
no events have the time at which the trial began.

No trial is a result of an MLPerf benchmark: its workload is called `harness_LABEL`, which no
benchmark of theirs is, and the submitting organization `unofficial`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.core.errors import BadInput
from harness.core.paths import SweepFolder, write_atomically
from harness.hardware.roofline import device_of
from harness.records.record import Evaluation, Rank0Report, Record
from harness.records.series import Series
from harness.records.store import RecordedSweep
from harness.spec.axes import Axes
from harness.spec.cell import WorkloadRef

PREFIX = ":::MLLOG "
NAMESPACE = "harness"  # of what MLPerf has no key for
ORGANIZATION = "unofficial"
DIVISION = "open"
# MLPerf's names of numeric formats, from the widest to the narrowest.
FORMATS = {"fp64": "fp64", "fp32": "fp32", "tf32": "tf32", "bf16": "bfloat16", "fp16": "fp16"}

EventType = Literal["INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a log."""

    at: float  # seconds since the epoch
    key: str
    event_type: EventType = "POINT_IN_TIME"
    value: Any = None
    metadata: Mapping[str, Any]
    namespace: str = ""

    def __str__(self) -> str:
        content = {
            "namespace": self.namespace,
            "time_ms": round(self.at * 1000),
            "event_type": self.event_type,
            "key": self.key,
            "value": self.value,
            "metadata": self.metadata,
        }
        return PREFIX + json.dumps(content)


@dataclass(frozen=True, kw_only=True)
class WrittenLog:
    """The log of a trial."""

    path: Path
    record: Record

    @property
    def benchmark(self) -> str:
        """Return what the log calls the trial's workload."""
        return benchmark_name(self.record.trial.cell.workload)


@dataclass(frozen=True, kw_only=True)
class LoggedTrial:
    """A trial that has come to its end."""

    record: Record
    report: Rank0Report  # of the record

    @property
    def axes(self) -> Axes:
        """Return the axes of the trial's cell."""
        return self.record.trial.cell.axes

    def samples_after(self, step: int) -> int:
        """Return the number of samples trained on after `step` optimizer steps."""
        return step * self.axes.batch_size

    @staticmethod
    def of(record: Record) -> LoggedTrial:
        """Return the trial of a record; raises BadInput for one that can't be written as a log."""
        report = record.rank0
        if record.summary is None or report is None:
            raise _no_log(record, f"is {record.status}; allowed: done or invalid")
        if not report.evaluations:
            raise _no_log(record, "has no evaluation; allowed: at least one")
        return LoggedTrial(record=record, report=report)


def _no_log(record: Record, problem: str) -> BadInput:
    """Return the error for a trial that can't be written as a log."""
    return BadInput(f"{record.sweep}: {record.trial.id}: {problem}")


def write_logs(folder: SweepFolder, recorded: RecordedSweep) -> list[WrittenLog]:
    """Write the log of each trial that is complete, in place of an earlier one.

    Raises BadInput without any such trial, and for one without evaluations.
    """
    written = []
    for record in recorded.records:
        # The epochs of a script are not known.
        if record.summary is None or record.trial.cell.workload.is_script:
            continue
        log = WrittenLog(path=folder.trial_folder(record.trial.id).mllog_path, record=record)
        write_log(log.path, record)
        written.append(log)
    if not written:
        raise BadInput(
            f"{recorded.sweep.name}: found no complete trial of a workload class; allowed: at least one"
        )
    return written


def write_log(path: Path, record: Record) -> None:
    """Write the log of a trial; raises BadInput for one that can't be written as a log.

    It may be lost with the power, as it can be written again.
    """
    text = "".join(f"{line}\n" for line in log_lines(record))
    write_atomically(path, text, durable=False)


def log_lines(record: Record) -> list[Line]:
    """Return a trial as lines in the order of their times; raises BadInput as `write_log` does."""
    trial = LoggedTrial.of(record)
    lines = [*_initialization(trial), *_run(trial)]
    # Sorting keeps the order of lines of the same time, such as the end of a block and the
    # start of the evaluation after it.
    return sorted(lines, key=lambda line: line.at)


def benchmark_name(workload: WorkloadRef) -> str:
    """Return what a log calls a workload: never the name of an MLPerf benchmark."""
    return f"harness_{workload.label}"


# Before the run


def _initialization(trial: LoggedTrial) -> Iterator[Line]:
    """Yield what is logged before the run: the facts, and when the trial was set up."""
    at = trial.report.began_at
    # The harness drops no cache of the system, so the log must not claim it.
    yield Line(at=at, key="cache_clear", value=False, metadata={})
    yield _start("init_start", at)
    for key, value in {**_submission(trial), **_hyperparameters(trial)}.items():
        yield Line(at=at, key=key, value=value, metadata={})
    for key, value in _settings(trial).items():
        yield Line(at=at, key=key, value=value, metadata={}, namespace=NAMESPACE)
    yield _stop("init_stop", trial.report.training_began_at)


def _submission(trial: LoggedTrial) -> dict[str, Any]:
    """Return what was trained, and on what, as in `2 x NVIDIA H100` or `2 cores of AMD EPYC`."""
    assert trial.record.environment is not None  # as there is a report of rank 0
    hardware = trial.record.environment.hardware
    platform = f"{hardware.usable_cores} cores of {hardware.cpu or 'an unknown CPU'}"
    if device_of(trial.record) == "cuda" and hardware.gpus:
        platform = f"{trial.axes.world_size} x {hardware.gpus[0].name}"
    settings = trial.record.settings
    return {
        "submission_benchmark": benchmark_name(trial.record.trial.cell.workload),
        "submission_division": DIVISION,
        "submission_org": ORGANIZATION,
        "submission_platform": platform,
        "config_filename": trial.record.sweep if settings is None else settings.sweep_file,
        "train_samples": trial.report.train_samples,
        "eval_samples": trial.report.test_samples,
    }


def _hyperparameters(trial: LoggedTrial) -> dict[str, Any]:
    """Return the trial's settings that MLPerf has keys for.

    An optimizer and a learning rate that are the workload's own are left out.
    """
    axes = trial.axes
    precision = FORMATS[axes.precision.partition(":")[0]]  # the axis may say `bf16:fsdp2`
    parameters = {
        "seed": trial.record.trial.seed,
        "global_batch_size": axes.batch_size,
        "micro_batch_size": axes.batch_size // (axes.data_parallel_size * axes.grad_accum_steps),
        "gradient_accumulation_steps": axes.grad_accum_steps,
        "lowest_numerical_precision_in_linear": precision,
        "lowest_numerical_precision_in_attn": precision,
        "lowest_numerical_precision_in_comm": _precision_of_communication(trial),
        "tensor_parallelism": axes.tensor_parallel_size,
        "pipeline_parallelism": axes.world_size if axes.strategy == "pp" else 1,
        "context_parallelism": 1,
        "expert_parallelism": 1,
    }
    if axes.optimizer != "recipe":
        parameters["opt_name"] = axes.optimizer
    if axes.lr is not None:
        parameters["opt_base_learning_rate"] = axes.lr
    return parameters


def _precision_of_communication(trial: LoggedTrial) -> str:
    """Return the narrowest numeric format that ranks send in a step.

    It is what was counted in a step, whatever the settings say. Without communication it is that of
    the parameters.
    """
    sent = {collective.dtype for collective in trial.report.collectives or ()}
    from_narrow_to_wide = reversed(list(FORMATS))
    for name in from_narrow_to_wide:
        if name in sent:
            return FORMATS[name]
    return "fp64" if trial.axes.precision == "fp64" else "fp32"


def _settings(trial: LoggedTrial) -> dict[str, Any]:
    """Return all that the cell sets, by the names of a sweep file."""
    cell = trial.record.trial.cell
    settings: dict[str, Any] = {"trial": trial.record.trial.id, "attempt": trial.record.attempt}
    settings |= cell.levels
    for section in ("options", "data"):
        for name, value in getattr(cell.workload, section).items():
            settings[f"{section}.{name}"] = value
    return settings


# The run


def _run(trial: LoggedTrial) -> Iterator[Line]:
    """Yield the run: epochs, blocks of training between evaluations, and the evaluations."""
    yield _start("run_start", trial.report.training_began_at)
    # Where an attempt ended and the next one resumed: their pause is part of the run.
    for interruption in trial.record.ranks.across.interruptions:
        yield Line(
            at=interruption.at,
            key="interrupted",
            value=interruption.signal,
            metadata={"step": interruption.step, "lost_seconds": interruption.lost_seconds},
            namespace=NAMESPACE,
        )
    for number, at in _moments(trial.record.ranks[0].epoch_ended_at):
        yield _stop("epoch_stop", at, epoch_num=number)
    steps_per_epoch = trial.report.steps_per_epoch
    block_began_at, block_step = trial.report.training_began_at, 0
    for evaluation in trial.report.evaluations:
        epochs = (evaluation.step - block_step) / steps_per_epoch
        block = {
            "first_epoch_num": block_step // steps_per_epoch + 1,
            "epoch_count": _whole_if_possible(epochs),
            "samples_count": trial.samples_after(block_step),
        }
        yield _start("block_start", block_began_at, **block)
        yield _stop("block_stop", evaluation.started_at, **block)
        yield from _evaluation(trial, evaluation)
        block_began_at = evaluation.started_at + (evaluation.seconds or 0.0)
        block_step = evaluation.step
    for number, at in _moments(trial.record.ranks[0].epoch_began_at):
        yield _start("epoch_start", at, epoch_num=number)
    progress = _progress(trial, block_step)
    yield _stop("run_stop", block_began_at, status=_status(trial), **progress)


def _moments(series: Series | None) -> Iterator[tuple[int, float]]:
    """Yield the number of each epoch, counted from 1, with its moment."""
    if series is not None:
        yield from enumerate(series.unpack().tolist(), start=1)


def _evaluation(trial: LoggedTrial, evaluation: Evaluation) -> Iterator[Line]:
    """Yield an evaluation with its value of the target metric on the test set."""
    target = trial.report.target
    end = evaluation.started_at + (evaluation.seconds or 0.0)
    progress = _progress(trial, evaluation.step)
    yield _start("eval_start", evaluation.started_at, **progress)
    yield Line(
        at=end,
        key="eval_accuracy",
        value=evaluation.metrics[target.name],
        metadata={**progress, "metric": target.name},
    )
    yield _stop("eval_stop", end, **progress)


def _progress(trial: LoggedTrial, step: int) -> dict[str, Any]:
    """Return the epochs and samples after `step` optimizer steps."""
    return {
        "epoch_num": _whole_if_possible(step / trial.report.steps_per_epoch),
        "samples_count": trial.samples_after(step),
    }


def _whole_if_possible(number: float) -> float:
    """Return the same number, as an integer if it is one."""
    return int(number) if number.is_integer() else number


def _status(trial: LoggedTrial) -> Literal["success", "aborted"]:
    """Return `aborted` for a trial that ended without reaching the goal of its sweep."""
    rule, outcome = trial.record.trial.cell.stop, trial.report.stop
    if rule is None or rule.goal is None or outcome is None:
        return "success"
    return "success" if outcome.reason == "goal" else "aborted"


def _start(key: str, at: float, **metadata: Any) -> Line:
    """Return the beginning of an interval."""
    return Line(at=at, key=key, event_type="INTERVAL_START", metadata=metadata)


def _stop(key: str, at: float, **metadata: Any) -> Line:
    """Return the end of an interval."""
    return Line(at=at, key=key, event_type="INTERVAL_END", metadata=metadata)
