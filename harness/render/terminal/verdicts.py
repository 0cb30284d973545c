"""Shows the verdicts within one sweep: every cell compared with the first cell of its workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from harness.analysis.compare import Comparison, Match, Row, Side, against_first
from harness.analysis.result import CellResult, aggregate
from harness.records.record import Record
from harness.render.terminal.table import make_table
from harness.render.terminal.table import show as show_table
from harness.spec.cell import Cell
from harness.spec.sweep import Sweep
from harness.statistics.verdict import Outcome

STYLES: dict[Outcome, str] = {
    "better": "green",
    "worse": "bold red",
    "same": "",
    "inconclusive": "yellow",
}
UNKNOWN = "–"


def show_verdicts(console: Console, sweep: Sweep, records: Sequence[Record]) -> None:
    """Print a row for each cell but the references: its speed as a ratio, an interval and a verdict.

    Leaves out cells of a single trial, and prints nothing where no workload has two cells that were measured.
    """
    results = {result.cell.id: result for result in aggregate(records)}
    repeated: list[CellResult] = []
    for cell in sweep.cells:
        if cell.id in results and sweep.count_trials(cell) > 1:  # one trial has no interval
            repeated.append(results[cell.id])
    comparison = _compare_with_first(sweep.name, repeated)
    if comparison is None or not comparison.rows:
        return
    columns = ["workload", "cell", "against", "speed", "95% interval", "pairs", "verdict"]
    metric_name = _metric_name(comparison)
    if metric_name:
        columns.append(metric_name)
    table = make_table(columns, ["speed", "95% interval", "pairs"])
    for match in comparison.matches:
        rows = comparison.rows_of(match)
        speed_cells = _speed_cells(rows)
        metric_cells = [_metric_cell(rows)] if metric_name else []
        workload = match.b.cell.workload.label
        table.add_row(workload, *_describe_difference(match), *speed_cells, *metric_cells)
    console.print()
    show_table(console, table)
    console.print(
        "[dim]speed: samples/s over that of the cell it is compared with, over pairs of trials with"
        " the same seed; a verdict holds for all rows together (Holm, 5%)[/]",
        soft_wrap=True,
    )


def _compare_with_first(name: str, results: Sequence[CellResult]) -> Comparison | None:
    """Compare the cells with the first measured one of their workload; None without two of one."""
    if not results:
        return None
    return against_first(Side(name=name, cells=results))


def _describe_difference(match: Match) -> tuple[str, str]:
    """Return what the two cells of a match differ in: `ddp 2` of this one, `single 1` of the reference.

    The names of the axes stand in the table above.
    """
    reference, cell = _axis_values(match.a.cell), _axis_values(match.b.cell)
    differing = [name for name in cell if cell[name] != reference[name]]
    return (
        " ".join(f"{name}={cell[name]}" for name in differing),
        " ".join(reference[name] for name in differing),
    )


def _axis_values(cell: Cell) -> dict[str, str]:
    return {name: str(value) for name, value in asdict(cell.axes).items()}


def _speed_cells(rows: Sequence[Row]) -> list[str | Text]:
    """Return the ratio, its interval, the number of pairs and the verdict of a match's throughput."""
    for row in rows:
        question = row.verdict.question
        if not question.metric.relative:
            continue
        ratio = question.metric.back_transform(question.estimate.value)
        interval = UNKNOWN
        if question.estimate.standard_error is not None:
            interval = f"{row.verdict.low:.3f} to {row.verdict.high:.3f}"
        return [f"{ratio:.3f}×", interval, str(question.estimate.count), _verdict_text(row)]
    return [UNKNOWN, UNKNOWN, UNKNOWN, Text("not measured", style=STYLES["inconclusive"])]


def _metric_cell(rows: Sequence[Row]) -> str | Text:
    """Return the verdict on a match's target metric."""
    for row in rows:
        if not row.verdict.question.metric.relative:
            return _verdict_text(row)
    return UNKNOWN


def _metric_name(comparison: Comparison) -> str:
    """Return the name of the target metric: `metric` if there are several, empty if there is none."""
    metrics = [row.verdict.question.metric for row in comparison.rows]
    names = {metric.name for metric in metrics if not metric.relative}
    if len(names) > 1:
        return "metric"
    return names.pop() if names else ""


def _verdict_text(row: Row) -> Text:
    return Text(row.verdict.label, style=STYLES[row.verdict.outcome])
