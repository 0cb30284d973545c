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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.analysis.parity import SweepParity
from harness.analysis.result import UNRECORDED, CellResult
from harness.analysis.sweep_result import SweepResult
from harness.records.numbers import RATES, distinct_names, final_name, metric_name
from harness.records.record import Evaluation, Record, Status
from harness.render.findings import conclusions, remarks
from harness.render.format import cell_names, checkpoint_notes, stop_note
from harness.spec.cell import Cell

if TYPE_CHECKING:
    from mlflow.entities import Metric

CURVE_POINTS = 1000  # at most, of a curve in MLflow; the record keeps all
# MLflow's status for each of ours.
MLFLOW_STATUS: Mapping[Status, str] = {
    "done": "FINISHED",
    "invalid": "KILLED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}
DESCRIPTION_TAG = "mlflow.note.content"  # what MLflow shows above all, in Markdown
LABEL_TAG = "harness.label"  # on runs of cells and trials, whose names are short
VALUE_LENGTH = 5000  # characters of a tag or a param that every MLflow server takes
TRACEBACK_LENGTH = VALUE_LENGTH // 2  # characters of its end that a run's description shows
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


@dataclass(frozen=True, kw_only=True)
class RunContents:
    """All that one MLflow run shows, except the files that are stored with it."""

    name: str
    kind: str  # sweep, cell or trial
    key: str  # identifies it among the runs of its kind in the sweep
    started: int  # milliseconds since the epoch
    ended: int  # milliseconds since the epoch
    status: str  # MLflow's: RUNNING, FINISHED, KILLED or FAILED
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Sequence[Metric]
    description: str | None = None


def text_digest(text: str) -> str:
    """Return the SHA-256 of a text, by which MLflow is asked whether it has the text already."""
    return hashlib.sha256(text.encode()).hexdigest()


def trial_contents(record: Record, *, cell_name: str = "", repeats: int) -> RunContents:
    """Return what the run of one trial shows: its params, numbers and curves.

    `repeats` is the sweep's number of repeats. A run is named after its seed, its repeat where there are
    several, and its cell, `cell_name` or else its label: pages cut long names at their end.
    """
    from mlflow.entities import Metric

    trial = record.trial
    number = f"seed {trial.seed}"
    if repeats > 1 or trial.repeat:
        number += f" repeat {trial.repeat}"
    ended = _milliseconds(record.ended)
    metrics = []
    for metric, value in record.numbers.items():
        metrics.append(Metric(metric, value, ended, 0))
    metrics += curves(record)
    return RunContents(
        name=f"{number} {cell_name or trial.cell.label}",
        kind="trial",
        key=trial.id,
        started=_milliseconds(record.started),
        ended=ended,
        status=MLFLOW_STATUS[record.status],
        tags=_texts({LABEL_TAG: f"{trial.cell.label} {number}", **_trial_tags(record)}),
        params=params(trial.cell) | {"seed": str(trial.seed), "repeat": str(trial.repeat)},
        metrics=metrics,
        description=_trial_note(record),
    )


def _trial_tags(record: Record) -> dict[str, Any]:
    """Return the tags of a trial's run; `_texts` leaves out those that are None."""
    tags: dict[str, Any] = {
        "harness.status": record.status,
        "harness.cell": record.trial.cell.id,
        "harness.attempt": str(record.attempt),
        "harness.order_digest": record.order_digest,
        "harness.invalid": "; ".join(record.violations) or None,
        "harness.interruptions": "; ".join(checkpoint_notes(record)) or None,
        "harness.stop": stop_note(record),
    }
    if record.failure:
        tags["harness.error"] = str(record.failure)
    if record.summary:
        tags["harness.settled"] = record.summary.settled
        if record.summary.slowest:
            slowest = record.summary.slowest
            tags["harness.slowest_rank"] = f"rank {slowest.rank} on {slowest.host}"
    if record.rank0:
        tags["harness.parameter_digest"] = record.rank0.parameter_digest
    if record.environment and record.environment.code:
        tags["mlflow.source.git.commit"] = record.environment.code.commit
        tags["mlflow.source.git.dirty"] = record.environment.code.dirty
    return tags


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
    metrics = _answers(result, cell_result)
    for metric in CELL_METRICS:
        if metric in cell_result.numbers:
            metrics[metric] = cell_result.numbers[metric]
    for metric, value in metrics.items():
        metrics[metric] = float(f"{value:.6g}")  # for a page that people read
    metrics["trials_done"] = len(cell_result.trials)
    metrics["trials_not_done"] = sum(cell_result.left_out.values())
    tags: dict[str, Any] = {LABEL_TAG: cell.label, **_verdict_tags(result, cell)}
    if parity is not None:
        tags |= _parity_tags(parity, cell)
    return _group_contents(
        "cell", cell.id, name, records, [cell_result], metrics, tags, params(cell)
    )


def _answers(result: SweepResult, cell_result: CellResult) -> dict[str, float]:
    """Return the throughput, the speed against the first cell, and the target metric, with intervals.

    `harness.ci_low` and `harness.ci_high` are in the unit of the throughput, `harness.speedup` and its
    bounds are ratios. The first cell has no speedup; a bound that is infinite has no metric.
    """
    metrics: dict[str, float] = {}
    if cell_result.throughput is not None:
        metrics[RATES[cell_result.throughput_unit]] = cell_result.throughput.mean
    row = result.throughput_row(cell_result.cell)
    if row is not None:
        metrics["harness.speedup"] = row.verdict.effect
        if row.verdict.interval is not None:
            metrics["harness.speedup_low"], metrics["harness.speedup_high"] = row.verdict.interval
    if cell_result.metric is not None and cell_result.target is not None:
        metrics[final_name(cell_result.target.name)] = cell_result.metric.mean
    if cell_result.throughput is not None and cell_result.throughput.bounds is not None:
        metrics["harness.ci_low"], metrics["harness.ci_high"] = cell_result.throughput.bounds
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _verdict_tags(result: SweepResult, cell: Cell) -> dict[str, Any]:
    """Return the verdicts on a cell as tags, with the label of the cell that it is compared with.

    `harness.verdict` is on throughput, `harness.verdict_NAME` on the target metric. The first cell
    itself is tagged `first`, as in the table.
    """
    if result.is_reference(cell):
        return {"harness.verdict": "first"}
    tags = {}
    for row in result.rows(cell):
        tag = "harness.verdict" if row.is_throughput else f"harness.verdict_{row.metric.name}"
        tags[tag] = row.verdict.label
        tags["harness.reference"] = row.a.cell.label
    return tags


def _parity_tags(parity: SweepParity, cell: Cell) -> dict[str, Any]:
    """Return the rung of a cell as a tag; the reference itself is tagged `reference`."""
    from harness.render.parity import rung_label  # here, as it loads torch

    if parity.is_reference(cell):
        return {"harness.parity": "reference"}
    measured = parity.of(cell)
    return {} if measured is None else {"harness.parity": rung_label(measured)}


def sweep_contents(result: SweepResult, records: Sequence[Record]) -> RunContents:
    """Return what the run of a whole sweep shows: its progress, and its result as a description."""
    counts = Counter(record.status for record in records)
    metrics = {f"trials_{status}": float(counts[status]) for status in MLFLOW_STATUS}
    metrics["trials_planned"] = float(sum(cell.planned for cell in result.cells))
    metrics["cells_planned"] = float(len(result.cells))
    metrics["duration_s"] = _ended(records) - _started(records)
    return _group_contents(
        "sweep", result.name, result.name, records, result.cells, metrics, {}, {}
    )


def sweep_description(result: SweepResult, records: Sequence[Record]) -> str:
    """Return the sentences that the terminal begins with, as Markdown: first what to beware of."""
    names = cell_names(result.all_cells, with_workload=True)

    def name(cell: Cell) -> str:
        """Return the short name of a cell."""
        return names.get(cell.id, cell.label)

    warnings = [remark.text for remark in remarks(result, records, name) if remark.look == "worse"]
    short_names = cell_names(result.all_cells)
    found = conclusions(result, lambda cell: short_names[cell.id])
    sentences = [*warnings, *found] or ["No trial was measured."]
    return escape_markdown(" ".join(sentences))[:VALUE_LENGTH]


def _group_contents(
    kind: str,
    key: str,
    name: str,
    records: Sequence[Record],
    cells: Sequence[CellResult],
    metrics: Mapping[str, float],
    tags: Mapping[str, Any],
    settings: Mapping[str, str],
) -> RunContents:
    """Return what the run of several trials shows.

    The time of its metrics is now, so that MLflow shows the newest value. Their step is 0, so that
    MLflow draws them as bars. A run has finished once all trials are done, which nothing else looks
    like.
    """
    from mlflow.entities import Metric

    now = _milliseconds(time.time())
    left_out: Counter[str] = Counter()
    for cell in cells:
        left_out.update(cell.left_out)
    status = "FINISHED"
    if left_out[UNRECORDED]:
        status = "RUNNING"
    elif left_out["failed"]:
        status = "FAILED"
    elif left_out.total():
        status = "KILLED"
    return RunContents(
        name=name,
        kind=kind,
        key=key,
        started=_milliseconds(_started(records)),
        ended=_milliseconds(_ended(records)),
        status=status,
        tags=_texts(tags),
        params=settings,
        metrics=[Metric(metric, value, now, 0) for metric, value in metrics.items()],
    )


def _started(records: Sequence[Record]) -> float:
    """Return when the first trial started, in seconds since the epoch."""
    return min(record.started for record in records)


def _ended(records: Sequence[Record]) -> float:
    """Return when the last trial ended, in seconds since the epoch."""
    return max(record.ended for record in records)


def params(cell: Cell) -> dict[str, str]:
    """Return all that decides a cell's result, each as its own param.

    Axes have their own names (`precision`), so that MLflow's filters read as a sweep file does.
    Options and data settings are prefixed, as in `options.dropout` and `data.source`.
    """
    workload = cell.workload
    settings: dict[str, Any] = {
        "workload": workload.label,
        "uses": workload.uses,
        **cell.levels,
        "length": cell.length_text,
        "evaluate": None if workload.is_script else f"every {cell.evaluate}",
        "stop": None if cell.stop is None else str(cell.stop),
        "warmup_steps": cell.warmup,
    }
    for name, value in workload.options.items():
        settings[f"options.{name}"] = value
    for name, value in workload.data.items():
        settings[f"data.{name}"] = value
    return _texts(settings)


def curves(record: Record) -> list[Metric]:
    """Return the loss at every step and every metric of every evaluation, thinned.

    In MLflow, a curve and a single number cannot share a name. So a metric of the test set gets the
    prefix `test_` if its name is that of a single number or of the training loss.

    A curve has at most CURVE_POINTS points, its first and last step among them. Steps of which a
    script reported no loss have none. Steps count from 1 and are those after which the value was true.
    """
    from mlflow.entities import Metric

    times = _step_times(record)
    points = []
    loss = record.loss
    if loss is not None:
        reported = np.flatnonzero(~np.isnan(loss))
        for position in evenly_spaced(len(reported), CURVE_POINTS):
            index = int(reported[position])
            step = index + 1
            points.append(Metric("loss", float(loss[index]), times[step], step))
    names = _evaluation_names(record)
    evaluations = _evaluations(record)
    for position in evenly_spaced(len(evaluations), CURVE_POINTS):
        evaluation = evaluations[position]
        step = evaluation.step
        for metric, value in evaluation.all_metrics.items():
            points.append(Metric(names[metric], value, times[step], step))
    return points


def _evaluation_names(record: Record) -> dict[str, str]:
    """Return the names in MLflow of all metrics that were evaluated."""
    used_names = {"loss", *record.numbers}
    names: dict[str, str] = {}
    for evaluation in _evaluations(record):
        for metric in evaluation.all_metrics:
            name = metric_name(metric)
            names[metric] = metric_name(f"test_{metric}") if name in used_names else name
    return distinct_names(names)


def evenly_spaced(count: int, limit: int) -> list[int]:
    """Return at most `limit` of the indices below `count`, both ends among them.

    Their distances differ by at most 1.
    """
    indices = np.linspace(0, count - 1, min(count, limit)).round().astype(int)
    unique: list[int] = np.unique(indices).tolist()
    return unique


def _step_times(record: Record) -> list[int]:
    """Return when each step had ended, from step 0 on, in milliseconds since the epoch.

    The record holds durations, not moments. So the time of a step is the trial's start, the phases
    before training, and the durations of all steps and evaluations so far. Steps are those of the
    first rank that has measured them; phases such as checkpoints are not counted, so that the end
    of a curve is somewhat before the end of its run.
    """
    evaluations = _evaluations(record)
    steps = max([0, *(evaluation.step for evaluation in evaluations)])
    measured = [rank.step_seconds for rank in record.ranks if rank.step_seconds is not None]
    if record.summary is not None:
        steps = max(steps, len(measured[0]))
    seconds = np.zeros(steps + 1)
    if measured:
        seconds[1 : len(measured[0]) + 1] = measured[0][:steps]
    for evaluation in evaluations:
        if evaluation.step < steps:  # the time of an evaluation counts for the step after it
            seconds[evaluation.step + 1] += evaluation.seconds or 0.0
    before_training = [record.phases.get(phase, 0.0) for phase in ("startup", "data", "build")]
    seconds[0] = record.started + sum(before_training)
    times: list[int] = (np.cumsum(seconds) * 1000).round().astype(int).tolist()
    return times


def _evaluations(record: Record) -> Sequence[Evaluation]:
    if record.rank0 is None:
        return ()
    return record.rank0.evaluations


def _trial_note(record: Record) -> str | None:
    """Return the description of a trial's run in Markdown, None if there is nothing to say.

    It says why the trial failed, or which rules of validity it broke, where it was interrupted,
    what may vary in spite of deterministic mode, and how to run it again.
    MLflow shows it at the top of the run's page.
    """
    paragraphs: list[str] = []
    if record.failure:
        # The error in bold, and the end of its traceback.
        paragraph = f"**{record.failure}**"
        if record.failure.traceback:
            paragraph += f"\n\n```\n{record.failure.traceback[-TRACEBACK_LENGTH:]}\n```"
        paragraphs.append(paragraph)
    elif record.violations:
        paragraphs.append(_list("invalid, excluded from all means", record.violations))
    interruptions = checkpoint_notes(record)
    if interruptions:
        paragraphs.append(_list("resumed", interruptions))
    stop = stop_note(record)
    if stop is not None:
        paragraphs.append(stop)
    if record.notes:
        paragraphs.append(_list("know of it", record.notes))
    if record.status in ("done", "invalid"):
        command = f"harness reproduce {record.trial.id}"  # where its results folder is
        paragraphs.append(f"Run it again, and compare the bits:\n\n    {command}")
    return "\n\n".join(paragraphs) or None


def _list(heading: str, items: Sequence[str]) -> str:
    """Return a list in Markdown under a bold heading."""
    lines = "".join(f"\n- {item}" for item in items)
    return f"**{heading}**{lines}"


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


def escape_markdown(text: str) -> str:
    """Return a user's text on one line, without meaning to Markdown or HTML.

    Labels of workloads and names of options are chosen by users: a tag would be rendered.
    """
    for letter in "\\|`*_[]":
        text = text.replace(letter, f"\\{letter}")
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return " ".join(text.split())
