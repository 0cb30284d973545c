"""Makes tables for the terminal: the cells of a plan, the results of a sweep.

`harness plan` imports this module and must start at once, so that what loads SciPy is imported by
the functions that need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from harness.analysis.cells import summary_values, varying_axes
from harness.analysis.stopping import summarize_stops
from harness.records.record import Record
from harness.render import format as fmt
from harness.render.terminal.console import TerminalConsole, write_lines
from harness.spec.cell import Cell
from harness.spec.sweep import Sweep

if TYPE_CHECKING:
    from harness.analysis.result import CellResult
    from harness.analysis.sweep_result import SweepResult

MFU_COLUMNS = {  # column -> field of `Summary`; shown where a record has it
    "MFU": "mfu",
    "MFU measured": "mfu_measured",
}
# By the status of a trial, or the worst of a cell's.
STATUS_STYLE = {
    "done": "green",
    "failed": "red",
    "invalid": "magenta",
    "interrupted": "yellow",
    "missing": "yellow",
}
STATUS_LABELS = {"unrecorded": "missing"}  # as people call it; the others are called as they are
NUMERIC_AXES = ("num_workers", "world_size", "batch_size", "num_threads")  # aligned to the right
CERTAIN = "★"  # marks the fastest cell of a workload, if every other one is slower for certain
HIGHEST = "☆"  # marks the best mean of a workload: another cell may truly be as good
LONG = 200  # rows; a longer table has no colors
WIDEST = 1000  # columns, more than any table takes


def show(console: Console, table: Table | PlainTable) -> None:
    """Print a table in full: a narrow terminal wraps its lines rather than cutting its texts.

    Rich fits a table to the console by cutting cells; a console as wide as the table prevents that.
    Of a long one it takes a millisecond a row, so that those are laid out here, without colors.
    """
    if isinstance(table, PlainTable) and len(table.rows) > LONG:
        write_lines(console, table.lines())
        return
    unlimited = console.options.update(max_width=WIDEST)
    natural_width = Measurement.get(console, unlimited, table).maximum
    width = max(console.width, natural_width)
    TerminalConsole(width=width, stderr=console.stderr).print(table)


@dataclass(frozen=True)
class _Marks:
    """The marks in two columns of a table of results, by the id of their cell."""

    throughput: dict[str, str]
    metric: dict[str, str]


class PlainTable:
    """A table whose texts are shown as they are: rich would take `[small]` in them for a style.

    Its rows are given to rich when it is shown, as a long table never is.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = columns
        self.rows: list[Sequence[str | Text]] = []

    def add_row(self, *cells: str | Text) -> None:
        """Add a row; a text that has a style is a `Text`."""
        self.rows.append(cells)

    def __rich__(self) -> Table:
        """Return what rich shows."""
        table = Table(
            *[column.copy() for column in self.columns],
            box=None,
            pad_edge=False,
            header_style="bold",
            padding=(0, 2, 0, 0),
        )
        for row in self.rows:
            table.add_row(*[Text(cell) if isinstance(cell, str) else cell for cell in row])
        return table

    def lines(self) -> list[str]:
        """Return the header and all rows as lines, in which columns are two spaces apart."""
        rows = [[str(column.header) for column in self.columns]]
        for row in self.rows:
            rows.append([_plain(cell) for cell in row])
        padded = []
        for column, texts in zip(self.columns, zip(*rows, strict=True), strict=True):
            padded.append(_padded(texts, to_right=column.justify == "right"))
        return ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]


def _plain(cell: str | Text) -> str:
    """Return the text of a cell without its style, and without what rich strips of texts."""
    text = cell.plain if isinstance(cell, Text) else cell
    return text if text.isprintable() else Text(text).plain


def _padded(texts: Sequence[str], *, to_right: bool) -> list[str]:
    """Return texts with blanks that make them equally wide."""
    widths = list(map(_width, texts))
    widest = max(widths)
    padded = []
    for text, width in zip(texts, widths, strict=True):
        blank = " " * (widest - width)
        padded.append(blank + text if to_right else text + blank)
    return padded


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes, without asking rich about plain ASCII."""
    if text.isascii() and text.isprintable():
        return len(text)
    return cell_len(text)


def make_table(columns: Iterable[str], numbers: Iterable[str]) -> PlainTable:
    """Return an empty table; `numbers` are the columns that are aligned to the right.

    They may name columns that the table does not have: `NUMERIC_AXES` has all such axes, of which
    a sweep may vary none. Only errors wrap, other texts being names and numbers.
    """
    right_aligned = set(numbers)
    described = []
    for column in columns:
        justify: JustifyMethod = "right" if column in right_aligned else "left"
        described.append(Column(Text(column), justify=justify, no_wrap=column != "error"))
    return PlainTable(described)


def plan_table(
    cells: Sequence[Cell], axes: Sequence[str], estimates: Mapping[str, float]
) -> PlainTable:
    """Return a table with a row for each of some cells of a sweep, and a column for each of some axes.

    `estimates` are the seconds that a trial takes, by the id of its cell.
    """
    columns = ["cell", "workload", *axes, "length", "estimate"]
    table = make_table(columns, [*NUMERIC_AXES, "estimate"])
    for cell in cells:
        estimate = "unknown"
        if cell.id in estimates:
            estimate = fmt.duration(estimates[cell.id])
        row = [*fmt.axis_texts(cell, axes), str(cell.length), estimate]
        table.add_row(cell.id, cell.workload.label, *row)
    return table


def result_table(sweep: Sweep, result: SweepResult) -> PlainTable:
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
    table = make_table(
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
        row: list[str | Text] = [cell.id, cell.workload.label, *fmt.axis_texts(cell, axes)]
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


def _trial_counts(cell_result: CellResult) -> Text:
    """Return how many of a cell's trials are done, and the worst status among them."""
    status = STATUS_LABELS.get(cell_result.status, cell_result.status)
    text = f"{len(cell_result.trials)}/{cell_result.planned} {status}"
    return Text(text, style=STATUS_STYLE[status])


def _marks(result: SweepResult) -> _Marks:
    """Return the marks of each workload's highest means, by the id of their cell.

    A workload of which a single cell was measured has none. Of the target metric there is no test
    among all cells of a workload, so its highest mean is never called certain.
    """
    marks = _Marks(throughput={}, metric={})
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


def _marked(text: str, mark: str | None) -> Text:
    """Return the text with its mark, or with room for one so that columns stay aligned."""
    if mark is None:
        return Text(f"{text}  ")
    return Text(f"{text} {mark}", style="bold green" if mark == CERTAIN else "")


def marks_legend(sweep: Sweep) -> str:
    """Return what the marks of a table of results mean."""
    if len(sweep.cells) < 2:
        return ""
    return f"{CERTAIN} certainly the fastest of its workload, {HIGHEST} the best mean; "
