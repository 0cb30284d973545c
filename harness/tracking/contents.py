"""What MLflow shows of a sweep, as plain data made from records: names, params, tags and metrics.

Nothing here talks to MLflow, so that all of it is tested without a store. The runs of a sweep and
of its cells are made from outlines of records, which are read once and kept while a sweep is
running.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.analysis.parity import SweepParity
from harness.analysis.result import (
    CellResult,
    join,
    of_trial,
    rounded,
)
from harness.analysis.scalars import (
    RATES,
    SCALARS,
    distinct_names,
    metric_name,
    over_trials,
    scalars,
)
from harness.analysis.sweep_result import SweepResult
from harness.analysis.trial_table import Value, join_row, trial_facts, trial_table
from harness.preflight.rates import RateSearch
from harness.records.record import Evaluation, Record, Status
from harness.render.format import checkpoint_notes, nondeterminism_notes, stop_note
from harness.render.trial_table import as_csv
from harness.spec.cell import Cell
from harness.tracking.markdown import DESCRIPTION_TAG, describe
from harness.tracking.verdicts import (
    interval_metrics,
    mean_metrics,
    parity_tags,
    rate_metrics,
    verdict_metrics,
    verdict_tags,
)

if TYPE_CHECKING:
    from mlflow.entities import Metric

# The version of what a run shows of a record. Raise it when that changes: it is part of the digest
# by which a run is known to be up to date, so that every trial is then delivered again.
LAYOUT = 9
CURVE_POINTS = 1000  # at most, of a loss curve in MLflow; the record keeps all
# MLflow's status for each of ours.
MLFLOW_STATUS: Mapping[Status, str] = {
    "done": "FINISHED",
    "invalid": "KILLED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}
LABEL_TAG = "harness.label"  # on runs of cells and trials, whose names are short
VALUE_LENGTH = 5000  # characters of a tag or a param that every MLflow server takes
TRACEBACK_LENGTH = VALUE_LENGTH // 2  # characters of its end that a run's description shows


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


@dataclass(frozen=True, kw_only=True)
class TrialOutline:
    """The part of a trial's record that the runs of its cell and its sweep show."""

    sweep: str
    trial: str
    cell: Cell
    cell_id: str
    digest: str  # of the record and of LAYOUT
    status: Status
    started: float  # seconds since the epoch
    ended: float  # seconds since the epoch
    scalars: Mapping[str, float]
    facts: Mapping[str, Value]  # of its row in the table of trials
    result: CellResult  # of this trial alone

    @property
    def target(self) -> str | None:
        """Return the name of the metric that the workload is trained towards, if it is known."""
        return None if self.result.target is None else self.result.target.name

    @staticmethod
    def of(record: Record, digest: str) -> TrialOutline:
        return TrialOutline(
            sweep=record.sweep,
            trial=record.trial.id,
            cell=record.trial.cell,
            cell_id=record.trial.cell.id,
            digest=digest,
            status=record.status,
            started=record.started,
            ended=record.ended,
            scalars=scalars(record),
            facts=trial_facts(record),
            result=of_trial(record),
        )


def trials_csv(outlines: Sequence[TrialOutline]) -> str:
    """Return the table of these trials as CSV, as `harness show --format csv` prints it."""
    cells = {outline.cell_id: outline.cell for outline in outlines}
    rows = []
    for outline in outlines:
        rows.append(join_row(outline.facts, outline.cell, outline.scalars))
    return as_csv(trial_table(cells.values(), rows))


def digest_of(content: bytes) -> str:
    """Return the digest of a record file and of the way in which a run shows it.

    A trial's run carries it as a tag. A run whose tag differs is written again: when its record has
    changed, when LAYOUT has, and when a number was added to the table of scalars or left it.
    """
    shown = [str(LAYOUT), *(scalar.name for scalar in SCALARS)]
    return hashlib.sha256("\0".join(shown).encode() + b"\0" + content).hexdigest()


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
    for metric, value in scalars(record).items():
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
    )


def _trial_tags(record: Record) -> dict[str, Any]:
    """Return the tags of a trial's run; `_texts` leaves out those that are None.

    Tags of MLflow's own (`mlflow.…`) fill columns of its pages: the description and the commit.
    """
    tags: dict[str, Any] = {
        "harness.status": record.status,
        "harness.cell": record.trial.cell.id,
        "harness.attempt": str(record.attempt),
        "harness.order_digest": record.order_digest,
        "harness.invalid": "; ".join(record.violations) or None,
        "harness.interruptions": "; ".join(checkpoint_notes(record)) or None,
        "harness.stop": stop_note(record),
        DESCRIPTION_TAG: _trial_note(record),
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
    outlines: Sequence[TrialOutline],
    *,
    cell_name: str = "",
    planned: Collection[str],
    result: SweepResult | None = None,
    parity: SweepParity | None = None,
    search: RateSearch | None = None,
    error_bar: str | None = None,
    picture: str | None = None,
) -> RunContents:
    """Return what the run of a cell shows, from the outlines of all its trials so far.

    Its metrics are means over the done trials. `cell_name` is short; without it, the cell has its
    label. `planned` are the ids of the trials that it should have.
    `result` is that of the whole sweep, None until the sweep is complete; `parity` is None where it
    was not measured, and `search` where no learning rate was searched. `error_bar` is its line of
    `error_bars`, and `picture` the leader board of its workload in Markdown; both are shown with the
    verdicts.
    """
    cell = outlines[-1].cell
    (cell_result,) = _join_results(outlines)
    done = [outline.scalars for outline in outlines if outline.status == "done"]
    numbers = over_trials(done)
    numbers |= mean_metrics(cell_result)
    metrics: dict[str, float] = {}
    for name in RATES.values():  # first, because MLflow's pages begin with the first metric
        if name in numbers:
            metrics[name] = numbers[name]
    metrics |= interval_metrics(cell_result)
    metrics |= rate_metrics(search, cell)
    tags: dict[str, Any] = {LABEL_TAG: cell.label, **parity_tags(parity, cell)}
    if result is not None:
        metrics |= verdict_metrics(result, cell)
        tags |= verdict_tags(result, cell)
        tags["harness.interval"] = error_bar
        notes = [tags.get(DESCRIPTION_TAG), picture]
        tags[DESCRIPTION_TAG] = "\n\n".join(filter(None, notes)) or None
    metrics |= numbers
    for name, value in metrics.items():
        metrics[name] = rounded(value)
    metrics |= _count_by_status(outlines)
    return _group_contents(
        "cell",
        outlines[-1].cell_id,
        cell_name or cell.label,
        outlines,
        planned,
        metrics,
        tags,
        params(cell),
    )


def sweep_contents(
    name: str,
    spec: Mapping[str, Any],
    outlines: Sequence[TrialOutline],
    result: SweepResult | None = None,
) -> RunContents:
    """Return what the run of a whole sweep shows: its progress, and its result as a description.

    `spec` is the content of sweep.json, empty if there is none. Trials that the sweep no longer
    plans do not count. `result` is None until the sweep is complete.
    """
    planned = set(spec.get("trials", ()))
    outlines = [outline for outline in outlines if outline.trial in planned] or outlines
    metrics = _count_by_status(outlines)
    metrics["duration_s"] = _ended(outlines) - _started(outlines)
    if spec:
        metrics["cells_planned"] = len(spec["cells"])
        metrics["trials_planned"] = len(spec["trials"])
    description = spec.get("description") or ""
    if result is not None:
        description = describe(description, result, VALUE_LENGTH) or "No trial is done."
    tags = {DESCRIPTION_TAG: description or None}
    return _group_contents("sweep", name, name, outlines, planned, metrics, tags, {})


def is_complete(outlines: Sequence[TrialOutline], planned: Collection[str]) -> bool:
    """Return whether all planned trials have ended.

    An interrupted trial has not: the next run or submission of the sweep resumes it.
    """
    if len(outlines) < len(planned):  # as after each trial of a sweep that runs
        return False
    ended = {outline.trial for outline in outlines if outline.status != "interrupted"}
    return set(planned) <= ended


def result_of(
    name: str,
    spec: Mapping[str, Any],
    outlines: Sequence[TrialOutline],
) -> SweepResult | None:
    """Return the result of a complete sweep, None before its last trial has ended.

    Before that, every trial could change the verdicts on all cells, and each delivery would have to
    bring the runs of all cells up to date.

    The order of the trials is the sweep's, because the first cell of a workload is the reference.
    Records of trials that the sweep no longer plans are left out. Without a sweep.json (`spec` is
    empty) all records count, from the earliest to the latest.
    """
    planned = list(spec.get("trials", ()))
    if not is_complete(outlines, planned):
        return None
    order = {trial: number for number, trial in enumerate(planned)}
    if planned:
        outlines = [outline for outline in outlines if outline.trial in order]
    ordered = sorted(outlines, key=lambda outline: (order.get(outline.trial, 0), outline.started))
    cells = _join_results(ordered)
    return SweepResult(name=name, cells=cells)


def _group_contents(
    kind: str,
    key: str,
    name: str,
    outlines: Sequence[TrialOutline],
    planned: Collection[str],
    metrics: Mapping[str, float],
    tags: Mapping[str, Any],
    settings: Mapping[str, str],
) -> RunContents:
    """Return what the run of several trials shows.

    The time of its metrics is now, so that MLflow shows the newest value. Their step is 0, so that
    MLflow draws them as bars.
    """
    from mlflow.entities import Metric

    now = _milliseconds(time.time())
    status = "FINISHED"
    if not is_complete(outlines, planned):
        status = "RUNNING"
    elif any(outline.status == "failed" for outline in outlines):
        status = "FAILED"
    return RunContents(
        name=name,
        kind=kind,
        key=key,
        started=_milliseconds(_started(outlines)),
        ended=_milliseconds(_ended(outlines)),
        status=status,
        tags=_texts(tags),
        params=settings,
        metrics=[Metric(metric, value, now, 0) for metric, value in metrics.items()],
    )


def _started(outlines: Sequence[TrialOutline]) -> float:
    """Return when the first trial started, in seconds since the epoch."""
    return min(outline.started for outline in outlines)


def _ended(outlines: Sequence[TrialOutline]) -> float:
    """Return when the last trial ended, in seconds since the epoch."""
    return max(outline.ended for outline in outlines)


def _join_results(outlines: Sequence[TrialOutline]) -> list[CellResult]:
    """Return the results of cells, put together from those of single trials."""
    return join([outline.result for outline in outlines])


def _count_by_status(outlines: Sequence[TrialOutline]) -> dict[str, float]:
    """Return the number of trials in each status, zeros included: `trials_done`, …"""
    counts = Counter(outline.status for outline in outlines)
    return {f"trials_{status}": counts[status] for status in MLFLOW_STATUS}


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
        "evaluate": f"every {cell.evaluate}",
        "stop": None if cell.stop is None else str(cell.stop),
        "warmup_steps": cell.warmup,
    }
    for name, value in workload.options.items():
        settings[f"options.{name}"] = value
    for name, value in workload.data.items():
        settings[f"data.{name}"] = value
    return _texts(settings)


def curves(record: Record) -> list[Metric]:
    """Return the loss at every step, thinned, and every metric of every evaluation.

    In MLflow, a curve and a single number cannot share a name. So a metric of the test set gets the
    prefix `test_` if its name is that of a single number or of the training loss.

    The loss has at most CURVE_POINTS points, its first and last step among them. Steps of which a
    script reported no loss have none. Steps count from 1 and are those after which the value was true.
    """
    from mlflow.entities import Metric

    times = _step_times(record)
    points = []
    if record.loss is not None:
        loss = record.loss.unpack()
        reported = np.flatnonzero(~np.isnan(loss))
        for position in evenly_spaced(len(reported), CURVE_POINTS):
            index = int(reported[position])
            step = index + 1
            points.append(Metric("loss", float(loss[index]), times[step], step))
    names = _evaluation_names(record)
    for evaluation in _evaluations(record):
        step = evaluation.step
        for metric, value in evaluation.all_metrics.items():
            points.append(Metric(names[metric], value, times[step], step))
    return points


def _evaluation_names(record: Record) -> dict[str, str]:
    """Return the names in MLflow of all metrics that were evaluated."""
    used_names = {"loss", *scalars(record)}
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
    if record.loss:
        steps = max(steps, record.loss.count)
    seconds = np.zeros(steps + 1)
    for rank in record.ranks:
        if rank.step_seconds:
            seconds[1 : rank.step_seconds.count + 1] = rank.step_seconds.unpack()[:steps]
            break
    for evaluation in evaluations:
        if evaluation.step < steps:  # the time of an evaluation counts for the step after it
            seconds[evaluation.step + 1] += evaluation.seconds or 0.0
    before_training = [
        record.phases.get(phase, 0.0) for phase in ("startup", "data", "build", "cool_down")
    ]
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
    nondeterminism = nondeterminism_notes(record)
    if nondeterminism:
        paragraphs.append(_list("not all of it is deterministic", nondeterminism))
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
