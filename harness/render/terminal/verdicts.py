"""Shows the verdicts within one sweep: each cell compared with a reference of its workload.

`harness.analysis.sweep_result` chooses the reference and compares; here is the table of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from harness.analysis.cells import naming_axes
from harness.analysis.result import CellResult
from harness.analysis.sweep_result import SweepResult
from harness.core.text import counted
from harness.render import format as fmt
from harness.render.table import Content, Table
from harness.render.terminal.table import show as show_table
from harness.statistics.verdict import ALPHA

COLUMNS = ["workload", "cell", "against", "speed", "interval", "pairs", "verdict"]
NUMBER_COLUMNS = ["speed", "interval", "pairs"]


def show_verdicts(console: Console, result: SweepResult) -> None:
    """Print a row for each cell that has a reference: its speed as a ratio, an interval, a verdict.

    Cells of a single trial are left out, as one trial has no interval. Prints nothing where no
    workload has two measured cells.
    """
    repeated: list[CellResult] = []
    for cell_result in result.cells:
        if cell_result.planned > 1:
            repeated.append(cell_result)
    if len(repeated) < len(result.cells):  # else its comparison may have been made already
        result = SweepResult(name=result.name, cells=repeated)
    if result.comparison is None or not result.comparison.rows:
        return
    metric_column = _metric_column(result)
    table = Table([*COLUMNS, *metric_column], NUMBER_COLUMNS)
    for workload, cells in result.workloads.items():
        _add_workload(table, result, workload, cells, has_metric=bool(metric_column))
    console.print()
    show_table(console, table)
    console.print(
        "[dim]speed: samples/s of the cell over those of the cell it is compared with, in pairs of"
        " trials that ran with the same seed; verdicts control false alarms over the whole table"
        f" (Holm, {ALPHA:.0%}); {fmt.interval_legend(ALPHA)}[/]",
        soft_wrap=True,
    )
    unlike = [match for match in result.comparison.matches if match.has_other_company]
    if unlike:
        companies = sorted(
            {text for match in unlike for text in (*match.a.companies, *match.b.companies)}
        )
        console.print(
            f"[yellow]{counted(len(unlike), 'cell')} with other company than the cell that it is"
            f" compared with[/] ({', '.join(companies)}): what ran beside the trials counts as a"
            " difference; --parallel 1 measures each alone",
            soft_wrap=True,
        )


def _metric_column(result: SweepResult) -> list[str]:
    """Return the column of the target metric: none without a metric, `metric` for several.

    Throughput is compared as a ratio, so the metric that is not relative is the target metric.
    """
    assert result.comparison is not None
    names: set[str] = set()
    for row in result.comparison.rows:
        if row.is_target_metric:
            names.add(row.metric.name)
    if len(names) > 1:
        return ["metric"]
    return list(names)


def _add_workload(
    table: Table,
    result: SweepResult,
    workload: str,
    cells: Sequence[CellResult],
    *,
    has_metric: bool,
) -> None:
    """Add a row for each cell of a workload that is compared with its reference.

    Cells are named by the axes in which those of the workload differ. `has_metric` says whether the
    table has a column for the target metric.
    """
    axes = naming_axes([cell_result.cell for cell_result in cells])
    for cell_result in cells:
        cell = cell_result.cell
        speed = result.throughput_row(cell)
        if speed is None:  # the reference itself, or a cell that was not measured
            continue
        texts: list[Content] = [
            workload,
            fmt.cell_name(cell, axes),
            fmt.cell_name(speed.a.cell, axes),
            fmt.effect(speed.verdict),
            fmt.effect_interval(speed.verdict),
            str(speed.verdict.question.estimate.count),
            fmt.verdict_badge(speed),
        ]
        if has_metric:
            texts.append(fmt.verdict_badge(result.metric_row(cell)))
        table.add_row(*texts)
