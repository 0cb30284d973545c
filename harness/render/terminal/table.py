"""Tables for the terminal: the cells of a plan, the results of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from harness.analysis.cells import summary_values, varying_axes
from harness.records.record import Record
from harness.render import format as fmt
from harness.spec.sweep import Sweep

if TYPE_CHECKING:
    from harness.analysis.result import CellResult
    from harness.analysis.sweep_result import SweepResult

MFU_COLUMNS = {  # column -> field of `Summary`; shown where a record has it
    "MFU": "mfu",
    "MFU measured": "mfu_measured",
}
STATUS_STYLE = {
    "done": "green",
    "failed": "red",
    "invalid": "magenta",
    "interrupted": "yellow",
    "missing": "yellow",
}
STATUS_LABELS = {"unrecorded": "missing"}  # as people call it; the others are called as they are
NUMERIC_AXES = ("num_workers", "world_size", "batch_size", "num_threads")  # aligned to the right
WIDEST = 1000  # columns, more than any table takes


def show(console: Console, table: Table) -> None:
    """Print a table in full: a narrow terminal wraps its lines rather than cutting its texts."""
    unlimited = console.options.update(max_width=WIDEST)
    natural_width = Measurement.get(console, unlimited, table).maximum
    Console(width=max(console.width, natural_width), highlight=False).print(table)


def make_table(columns: Iterable[str], numbers: Iterable[str]) -> Table:
    """Return an empty table; `numbers` are the columns that are aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    right_aligned = set(numbers)
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in right_aligned else "left",
            no_wrap=column != "error",
        )
    return table


def plan_table(sweep: Sweep, estimates: dict[str, float]) -> Table:
    """Return a table with one row a cell; `estimates` are seconds a trial by cell id."""
    axes = varying_axes(sweep.cells)
    columns = ["cell", "workload", *axes, "length", "estimate"]
    table = make_table(columns, [*NUMERIC_AXES, "estimate"])
    for cell in sweep.cells:
        values = [str(getattr(cell.axes, axis)) for axis in axes]
        seconds = estimates.get(cell.id)
        estimate = "unknown" if seconds is None else fmt.duration(seconds)
        table.add_row(cell.id, cell.workload.label, *values, str(cell.length), estimate)
    return table


def result_table(sweep: Sweep, records: Sequence[Record]) -> Table:
    """Return a table with one row a cell: means over its trials that are done.

    Means of two or more seeds or repeats have their 95% interval; the best cell of each workload
    is marked.
    """
    from harness.analysis.sweep_result import SweepResult  # loads SciPy, which a plan does not need

    result = SweepResult.of_records(sweep, records)
    axes = varying_axes(sweep.cells)
    mfu_columns = [title for title, field in MFU_COLUMNS.items() if _is_measured(records, field)]
    targets = {record.rank0.target.name for record in records if record.rank0}
    metric_column = next(iter(targets)) if len(targets) == 1 else "metric"
    numbers = ["samples/s", "step ms", *mfu_columns, metric_column]
    table = make_table(
        ["cell", "workload", *axes, *numbers, "trials"],
        [*numbers, *NUMERIC_AXES],
    )
    fastest, most_accurate = _best_cells(result)
    for cell_result in result.cells:
        cell = cell_result.cell
        done = result.done_records(cell)
        step_seconds = _mean_summary(done, "step_p50")
        mfu = [_mean_summary(done, MFU_COLUMNS[title]) for title in mfu_columns]
        metric = fmt.metric(cell_result.metric)
        if len(targets) > 1 and cell_result.metric and cell_result.target:
            metric = f"{cell_result.target.name} {metric}"
        table.add_row(
            cell.id,
            cell.workload.label,
            *(str(getattr(cell.axes, axis)) for axis in axes),
            _marked(fmt.throughput(cell_result.throughput), is_best=cell.id in fastest),
            fmt.milliseconds(step_seconds),
            *map(_mfu_text, mfu),
            _marked(metric, is_best=cell.id in most_accurate),
            _trial_counts(cell_result),
        )
    return table


def _is_measured(records: Sequence[Record], field: str) -> bool:
    """Return whether any record's summary has this field."""
    return bool(summary_values(records, field))


def _mean_summary(records: Sequence[Record], field: str) -> float | None:
    """Return the mean of a field of `Summary` over the records that have it."""
    values = summary_values(records, field)
    return fmean(values) if values else None


def _mfu_text(utilization: float | None) -> str:
    """Return a utilization in percent with three significant digits."""
    return fmt.MISSING if utilization is None else f"{utilization * 100:.3g}%"


def _trial_counts(cell_result: CellResult) -> Text:
    """Return how many of a cell's trials are done, and the worst status among them."""
    status = STATUS_LABELS.get(cell_result.status, cell_result.status)
    text = f"{len(cell_result.trials)}/{cell_result.planned} {status}"
    return Text(text, style=STATUS_STYLE[status])


def _best_cells(result: SweepResult) -> tuple[set[str], set[str]]:
    """Return the ids of each workload's fastest and of its most accurate cell.

    A workload of which a single cell was measured has neither.
    """
    fastest: set[str] = set()
    most_accurate: set[str] = set()
    for workload, cells in result.workloads.items():
        ranking = result.ranking(workload)
        if len(ranking) > 1:
            fastest.add(ranking[0].cell.id)
        best = result.most_accurate(workload)
        evaluated = [cell for cell in cells if cell.metric]
        if best is not None and len(evaluated) > 1:
            most_accurate.add(best.cell.id)
    return fastest, most_accurate


def _marked(text: str, *, is_best: bool) -> Text:
    """Return the text with a star, or with room for one so that columns stay aligned."""
    return Text(f"{text} ★", style="bold green") if is_best else Text(f"{text}  ")
