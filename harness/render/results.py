"""The table of a sweep's results: a row for each cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

from harness.analysis.cells import summary_values, varying_axes
from harness.analysis.result import CellResult
from harness.analysis.stopping import summarize_stops
from harness.analysis.sweep_result import SweepResult
from harness.records.record import Record
from harness.render import format as fmt
from harness.render.format import NUMERIC_AXES, STATUS_LOOKS
from harness.render.table import Content, Styled, Table
from harness.spec.sweep import Sweep

MFU_COLUMNS = {  # column -> field of `Summary`; shown where a record has it
    "MFU": "mfu",
    "MFU measured": "mfu_measured",
}
STATUS_LABELS = {"unrecorded": "missing"}  # as people call it; the others are called as they are
CERTAIN = "★"  # marks the fastest cell of a workload, if every other one is slower for certain
HIGHEST = "☆"  # marks the best mean of a workload: another cell may truly be as good


@dataclass(frozen=True)
class ResultMarks:
    """The marks in two columns of a table of results, by the id of their cell."""

    throughput: dict[str, str]
    metric: dict[str, str]


def result_table(sweep: Sweep, result: SweepResult) -> Table:
    """Return a table with one row a cell: means over its trials that are done.

    Means have their 95% interval where there are two or more independent values
    (`harness.statistics.trials`). The highest means of each workload are marked, and the fastest
    cell with a mark of its own if it is certain to be. Model FLOPs utilization has a column where
    any trial has one. Where workloads have different target metrics, each value has its metric's
    name before it. Where trials have a rule for stopping, there are the mean epochs that they trained,
    and those until their best evaluation.
    """
    records = list(chain.from_iterable(result.records.values()))
    axes = varying_axes(sweep.cells)
    mfu_columns = _mfu_columns(records)
    targets = {record.rank0.target.name for record in records if record.rank0}
    metric_column = "metric"
    if len(targets) == 1:
        (metric_column,) = targets
    stop_columns: list[str] = []
    if any(record.rank0 and record.rank0.stop for record in records):
        stop_columns = ["epochs", "best at"]
    numbers = ["samples/s", "step ms", *mfu_columns, metric_column, *stop_columns]
    table = Table(
        ["cell", "workload", *axes, *numbers, "trials"],
        [*numbers, *NUMERIC_AXES],
    )
    marks = _marks(result)
    for cell_result in result.cells:
        cell = cell_result.cell
        done = result.done_records(cell)
        step_seconds = _mean_summary(done, "step_p50")
        metric = fmt.metric(cell_result.metric)
        if len(targets) > 1 and cell_result.metric and cell_result.target:
            metric = f"{cell_result.target.name} {metric}"
        throughput = fmt.throughput(cell_result.throughput)
        row: list[Content] = [cell.id, cell.workload.label, *fmt.axis_texts(cell, axes)]
        row.append(_marked(throughput, marks.throughput.get(cell.id)))
        row.append(fmt.milliseconds(step_seconds))
        for field in mfu_columns.values():
            row.append(_mean_utilization(done, field))
        row.append(_marked(metric, marks.metric.get(cell.id)))
        if stop_columns:
            row += _epochs(done)
        row.append(_trial_counts(cell_result))
        table.add_row(*row)
    return table


def _mfu_columns(records: Sequence[Record]) -> dict[str, str]:
    """Return those of MFU_COLUMNS that any record has a value for."""
    columns = {}
    for title, field in MFU_COLUMNS.items():
        if summary_values(records, field):
            columns[title] = field
    return columns


def _epochs(records: Sequence[Record]) -> list[str]:
    """Return the mean epochs that trials trained, and those until their best evaluation."""
    summary = summarize_stops(records)
    if summary is None:
        return [fmt.MISSING, fmt.MISSING]
    best = fmt.MISSING if summary.epochs_to_best is None else f"{summary.epochs_to_best:.3g}"
    return [f"{summary.epochs:.3g}", best]


def _mean_summary(records: Sequence[Record], field: str) -> float | None:
    """Return the mean of a field of `Summary` over the records that have it."""
    values = summary_values(records, field)
    return fmean(values) if values else None


def _mean_utilization(records: Sequence[Record], field: str) -> str:
    """Return the mean of a model FLOPs utilization in percent, with three significant digits.

    Not with a fixed number of decimals: on CPUs it can be a small fraction of a percent.
    """
    utilization = _mean_summary(records, field)
    if utilization is None:
        return fmt.MISSING
    return f"{utilization * 100:.3g}%"


def _trial_counts(cell_result: CellResult) -> Styled:
    """Return how many of a cell's trials are done, and the worst status among them."""
    status = STATUS_LABELS.get(cell_result.status, cell_result.status)
    text = f"{len(cell_result.trials)}/{cell_result.planned} {status}"
    return Styled(text, STATUS_LOOKS[status])


def _marks(result: SweepResult) -> ResultMarks:
    """Return the marks of each workload's highest means, by the id of their cell.

    A workload of which a single cell was measured has none. Of the target metric there is no test
    among all cells of a workload, so its highest mean is never called certain.
    """
    marks = ResultMarks(throughput={}, metric={})
    for workload, cells in result.workloads.items():
        ranking = result.ranking(workload)
        if len(ranking) > 1:
            mark = CERTAIN if result.is_winner_certain(workload) else HIGHEST
            marks.throughput[ranking[0].cell.id] = mark
        best = result.most_accurate(workload)
        evaluated = sum(cell.metric is not None for cell in cells)
        if best is not None and evaluated > 1:
            marks.metric[best.cell.id] = HIGHEST
    return marks


def _marked(text: str, mark: str | None) -> Styled:
    """Return the text with its mark, or with room for one so that columns stay aligned."""
    if mark is None:
        return Styled(f"{text}  ", "plain")
    return Styled(f"{text} {mark}", "best" if mark == CERTAIN else "plain")


def marks_legend(sweep: Sweep) -> str:
    """Return what the marks of a table of results mean."""
    if len(sweep.cells) < 2:
        return ""
    return f"{CERTAIN} certainly the fastest of its workload, {HIGHEST} the best mean; "
