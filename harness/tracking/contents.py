"""What MLflow shows of a sweep, as plain data made from records: names, params, tags and metrics.

Nothing here talks to MLflow, so that all of it is tested without a store.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from harness.analysis.parity import SweepParity
from harness.analysis.result import UNRECORDED, CellResult, trial_row
from harness.analysis.sweep_result import SweepResult
from harness.records.numbers import RATES, final_name, metric_name
from harness.records.record import Record, Status
from harness.sweep.cell import Cell
from harness.view.findings import conclusions, remarks
from harness.view.parity import cell_rung
from harness.view.run import checkpoint_notes, stop_note
from harness.view.value import effect_of, write
from harness.view.view import escape_markdown

CURVE_POINTS = 1000  # at most, of a curve in MLflow; the record keeps all
# MLflow's status for each of ours.
MLFLOW_STATUS: Mapping[Status, str] = {
    "done": "FINISHED",
    "invalid": "KILLED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}
VALUE_LENGTH = 5000  # characters of a tag or a param that every MLflow server takes
TRACEBACK_LENGTH = VALUE_LENGTH // 2  # characters of its end that a run's description shows
# The facts of a trial that are tags of its run.
TRIAL_TAGS = (
    "cell",
    "status",
    "attempt",
    "failure",
    "violations",
    "hardware",
    "torch",
    "parameter_digest",
    "order_digest",
)
SPEED_TAG = "harness.speed"  # the effect on throughput with its interval, as tables have it
# What a cell's run shows of its trials besides its answers, in the order that matters; `record.json` of
# its trials has all numbers.
CELL_METRICS = (
    "final_loss",
    "step_time_p50_ms",
    "step_time_p99_ms",
    "data_wait_share",
    "communication_share",
    "mfu",
    "mfu_measured",
    "memory_training_mib",
    "joules_per_sample",
    "load_per_core",
    "ettr",
)


class Point(NamedTuple):
    """A value of a metric, in the order of the fields of MLflow's own `Metric`."""

    key: str
    value: float
    timestamp: int  # milliseconds since the epoch
    step: int = 0  # optimizer steps before it; a metric that has only 0 is drawn as a bar


@dataclass(frozen=True, kw_only=True)
class RunContents:
    """All that one MLflow run shows, except the files that are stored with it."""

    name: str
    kind: str  # sweep, cell or trial
    key: str  # identifies it among the runs of its kind in the sweep
    started: int  # milliseconds since the epoch
    ended: int  # milliseconds since the epoch
    status: str  # MLflow's: RUNNING, FINISHED, KILLED or FAILED
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Sequence[Point] = ()
    description: str = ""  # in Markdown


def points_at(timestamp: int, values: Mapping[str, float]) -> list[Point]:
    """Return the values of metrics as points of a time."""
    return [Point(metric, value, timestamp) for metric, value in values.items()]


def text_digest(text: str) -> str:
    """Return the SHA-256 of a text, by which MLflow is asked whether it has the text already."""
    return hashlib.sha256(text.encode()).hexdigest()


def trial_contents(record: Record, cell_name: str, repeats: int) -> RunContents:
    """Return what the run of one trial shows: its params, numbers and curves.

    A run is named after its seed, its repeat if the sweep has several `repeats`, and its cell: pages cut
    long names at their end.
    """
    trial = record.trial
    number = f"seed {trial.seed}"
    if repeats > 1 or trial.repeat:
        number += f" repeat {trial.repeat}"
    row = trial_row(record)
    tags = {f"harness.{name}": getattr(row, name) for name in TRIAL_TAGS}
    tags["harness.label"] = f"{trial.cell.label} {number}"
    tags["mlflow.source.git.commit"] = row.commit or row.harness_commit
    ended = _milliseconds(record.ended)
    return RunContents(
        name=f"{number} {cell_name}",
        kind="trial",
        key=trial.id,
        started=_milliseconds(record.started),
        ended=ended,
        status=MLFLOW_STATUS[record.status],
        tags=_texts(tags),
        params={
            **params(trial.cell),
            "seed": str(trial.seed),
            "repeat": str(trial.repeat),
        },
        metrics=points_at(ended, record.numbers) + curves(record),
        description=_trial_note(record),
    )


def cell_contents(
    result: SweepResult,
    cell_result: CellResult,
    records: Sequence[Record],
    *,
    name: str,
    parity: SweepParity | None = None,
) -> RunContents:
    """Return what the run of a cell shows of the records of all its trials so far.

    Its metrics are means over the done trials, the answer first. `name` is short. `parity` is None
    where it was not measured.
    """
    cell = cell_result.cell
    values = _answers(result, cell_result)
    for metric in CELL_METRICS:
        if metric in cell_result.numbers:
            values[metric] = cell_result.numbers[metric]
    metrics = {metric: float(f"{value:.6g}") for metric, value in values.items()}
    metrics["trials_done"] = len(cell_result.trials)
    metrics["trials_not_done"] = sum(cell_result.left_out.values())
    rung = cell_rung(parity, cell)
    tags = {
        "harness.label": cell.label,
        "harness.planned": "yes",
        **_verdict_tags(result, cell),
        "harness.parity": None if rung is None else rung.text,
    }
    return RunContents(
        name=name,
        kind="cell",
        key=cell.id,
        tags=_texts(tags),
        params=params(cell),
        **_course(records, cell_result.left_out, metrics),
    )


def sweep_contents(result: SweepResult, records: Sequence[Record]) -> RunContents:
    """Return what the run of a whole sweep shows: its progress."""
    counts = Counter(record.status for record in records)
    metrics = {f"trials_{status}": float(counts[status]) for status in MLFLOW_STATUS}
    left_out: Counter[str] = Counter()
    for cell in result.cells:
        left_out.update(cell.left_out)
    return RunContents(
        name=result.name,
        kind="sweep",
        key=result.name,
        **_course(records, left_out, metrics),
    )


def _course(
    records: Sequence[Record],
    left_out: Mapping[str, int],
    metrics: Mapping[str, float],
) -> dict[str, Any]:
    """Return when the run of several trials began and ended, its status, and its metrics.

    It has finished once all trials are done, which nothing else looks like. The time of its metrics is
    now, so that MLflow shows the newest value.
    """
    status = "FINISHED"
    if left_out.get(UNRECORDED):
        status = "RUNNING"
    elif left_out.get("failed"):
        status = "FAILED"
    elif any(left_out.values()):
        status = "KILLED"
    now = _milliseconds(time.time())
    started = min(record.started for record in records)
    ended = max(record.ended for record in records)
    return {
        "started": _milliseconds(started),
        "ended": _milliseconds(ended),
        "status": status,
        "metrics": points_at(now, metrics),
    }


def _answers(result: SweepResult, cell_result: CellResult) -> dict[str, float]:
    """Return the throughput, the speed against the first cell, and the target metric, with intervals.

    `harness.ci_low` and `harness.ci_high` are in the unit of the throughput, `speedup` and its
    bounds are ratios. The first cell has no speedup; bounds of too few values, or at infinity, have no metric.
    """
    target = cell_result.target
    names = {  # in the order that matters
        "throughput": RATES[cell_result.throughput_unit],
        "speedup": "speedup",
        "speedup_low": "speedup_low",
        "speedup_high": "speedup_high",
        "metric": "" if target is None else final_name(target.name),
        "throughput_low": "harness.ci_low",
        "throughput_high": "harness.ci_high",
    }
    answers = result.answers(cell_result)
    metrics: dict[str, float] = {}
    for answer, name in names.items():
        value = answers.get(answer)
        if value is not None and math.isfinite(value):
            metrics[name] = value
    return metrics


def _verdict_tags(result: SweepResult, cell: Cell) -> dict[str, str]:
    """Return the verdicts on a cell as tags, with the label of the cell that it is compared with.

    `harness.verdict` is on throughput, with the effect and its interval in `harness.speed`;
    `harness.verdict_NAME` is on the target metric. The first cell itself is tagged `first`, as in the
    table.
    """
    if result.is_reference(cell):
        return {"harness.verdict": "first"}
    match = result.match_of(cell)
    if match is None:
        return {}
    tags = {"harness.reference": match.a.cell.label}
    for verdict in match.verdicts:
        tag = f"harness.verdict_{verdict.metric.name}"
        if verdict is match.speed:
            tag = "harness.verdict"
            tags[SPEED_TAG] = write(effect_of(verdict))
        tags[tag] = verdict.label
    return tags


def sweep_description(result: SweepResult, records: Sequence[Record]) -> str:
    """Return the sentences that the terminal begins with, as Markdown: first what to beware of."""
    warnings = [remark.text for remark in remarks(result, records) if remark.look == "worse"]
    sentences = [*warnings, *conclusions(result)] or ["No trial was measured."]
    text = escape_markdown(" ".join(sentences))
    return text[:VALUE_LENGTH]


def params(cell: Cell) -> dict[str, str]:
    """Return all that decides a cell's result, each as its own param.

    Axes have their own names (`precision`), so that MLflow's filters read as a sweep file does.
    Options and data settings are prefixed, as in `options.dropout` and `data.source`.
    """
    workload = cell.workload
    values: dict[str, Any] = {
        "workload": workload.label,
        "uses": workload.uses,
        **cell.levels,
        "length": cell.length_text,
        "warmup_steps": cell.warmup,
    }
    if not workload.is_script:
        values["evaluate"] = f"every {cell.evaluate}"
    if cell.stop is not None:
        values["stop_patience"] = cell.stop.patience
        values["stop_goal"] = cell.stop.goal
    values |= workload.settings
    return _texts(values)


def curves(record: Record) -> list[Point]:
    """Return the loss at every step and every metric of every evaluation, thinned.

    In MLflow, a curve and a single number cannot share a name. So a metric of the test set gets the
    prefix `test_` if its name is that of a single number, of the training loss or of another metric.

    A curve has at most CURVE_POINTS points, its first and last step among them. Steps of which a
    script reported no loss have none. Steps count from 1 and are those after which the value was true.
    """
    return _loss_curve(record) + _evaluation_curves(record)


def _loss_curve(record: Record) -> list[Point]:
    """Return the loss of the steps that have one, thinned."""
    loss = record.loss
    if loss is None:
        return []
    points = []
    times = _step_times(record)
    reported = np.flatnonzero(~np.isnan(loss))
    for position in evenly_spaced(len(reported), CURVE_POINTS):
        index = int(reported[position])
        ended = int(times[index])
        points.append(Point("loss", float(loss[index]), ended, index + 1))
    return points


def _evaluation_curves(record: Record) -> list[Point]:
    """Return the metrics of evaluations, thinned, under names that nothing else has."""
    if record.rank0 is None:
        return []
    evaluations = record.rank0.evaluations
    used_names = {"loss", *record.numbers}
    names: dict[str, str] = {}
    metrics: set[str] = set()
    for evaluation in evaluations:
        metrics.update(evaluation.all_metrics)
    for metric in sorted(metrics):
        name = metric_name(metric)
        while name in used_names:
            name = metric_name(f"test_{name}")
        used_names.add(name)
        names[metric] = name
    points = []
    for position in evenly_spaced(len(evaluations), CURVE_POINTS):
        evaluation = evaluations[position]
        ended_at = evaluation.started_at + (evaluation.seconds or 0.0)
        at = _milliseconds(ended_at)
        for metric, value in evaluation.all_metrics.items():
            points.append(Point(names[metric], value, at, evaluation.step))
    return points


def evenly_spaced(count: int, limit: int) -> list[int]:
    """Return at most `limit` of the indices below `count`, both ends among them.

    Their distances differ by at most 1.
    """
    positions = np.linspace(0, count - 1, min(count, limit))
    indices = positions.round().astype(int)
    unique: list[int] = np.unique(indices).tolist()
    return unique


def _step_times(record: Record) -> Any:
    """Return about when each step ended, in milliseconds since the epoch, shape (steps,).

    The record holds durations, not moments: those of the phases before training, and of the first
    rank's steps. What is between steps, as an evaluation, is not counted.
    """
    phases = ("startup", "data", "build")
    before_training = sum(record.phases.get(phase, 0.0) for phase in phases)
    began = record.started + before_training
    seconds = record.ranks[0].step_seconds
    assert seconds is not None  # as the record has losses
    ends = began + np.cumsum(seconds)
    return (ends * 1000).round()


def _trial_note(record: Record) -> str:
    """Return the description of a trial's run in Markdown, empty if there is nothing to say.

    It says why the trial failed, or which rules of validity it broke, where it was interrupted,
    what may vary in spite of deterministic mode, and how to run it again.
    MLflow shows it at the top of the run's page.
    """
    paragraphs: list[str] = []
    if record.failure:
        # The error in bold, and the end of its traceback.
        paragraphs.append(f"**{record.failure}**")
        if record.failure.traceback:
            paragraphs.append(f"```\n{record.failure.traceback[-TRACEBACK_LENGTH:]}\n```")
    lists = {
        "invalid, excluded from all means": record.violations,
        "resumed": checkpoint_notes(record),
        "know of it": record.notes,
    }
    for heading, items in lists.items():
        if items:
            listed = "".join(f"\n- {item}" for item in items)
            paragraphs.append(f"**{heading}**{listed}")
    paragraphs.append(stop_note(record) or "")
    if record.status in ("done", "invalid"):
        command = f"harness reproduce {record.trial.id}"  # where its results folder is
        paragraphs.append(f"Run it again, and compare the bits:\n\n    {command}")
    return "\n\n".join(filter(None, paragraphs))


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as MLflow stores them: as texts of bounded length, without those that are None.

    What is no text is written as JSON: `true`, `64`, `[256, 128]`.
    """
    texts = {}
    for name, value in values.items():
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            texts[metric_name(name)] = text[:VALUE_LENGTH]
    return texts


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
