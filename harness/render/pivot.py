"""Shows `harness show SWEEP --pivot AXIS`: throughput with some axes across and the others down.

Two tables: the throughputs, and what the axes across do to them as ratios. The second one uses
pairs of trials, so that it is more precise than the quotient of two means in the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from harness.analysis.cells import varying_axes
from harness.analysis.sweep_result import SweepResult
from harness.core.errors import BadInput, did_you_mean
from harness.core.text import counted
from harness.records.record import Record
from harness.render import format as fmt
from harness.render.console import TerminalConsole, show_table
from harness.render.table import Table
from harness.spec.cell import Cell
from harness.spec.sweep import Sweep
from harness.statistics.interval import geometric_mean_interval

# All that two trials share which are compared: the axes that are down, the seed and the repeat.
Pairing = tuple[Hashable, ...]

RATIO_NOTE = (
    "ratios are geometric means over pairs of trials that differ in nothing else,"
    " with 95% intervals from 3 pairs on"
)


def show_pivot(sweep: Sweep, records: Sequence[Record], across: Sequence[str]) -> None:
    """Print both tables, and a line that says what they were computed from.

    Raises BadInput for an axis in which the sweep's cells do not differ.
    """
    console = TerminalConsole()
    result = SweepResult.of_records(sweep, records)
    show_table(console, pivot_table(sweep, result, across))
    console.print()
    show_table(console, ratio_table(sweep, result, across))
    done = [record for record in records if record.status == "done"]
    # Those of the last command, and of earlier ones.
    cells_by_trial = {trial.id: trial.cell.id for trial in sweep.trials()}
    cells_by_trial |= {record.trial.id: record.trial.cell.id for record in records}
    means = "one trial a cell"
    if max(Counter(cells_by_trial.values()).values()) > 1:
        means = "means over trials ± 95% intervals from 3 trials on (repeats of a seed count once)"
    unit = fmt.common_unit(result.cells)
    trials = f"{len(done)} of {counted(len(cells_by_trial), 'trial')}"
    summary = f"{unit}, {means}, {trials}; {RATIO_NOTE}"
    console.print_text(f"\n{summary}")


def pivot_table(sweep: Sweep, result: SweepResult, across: Sequence[str]) -> Table:
    """Return a table of throughput.

    It has a column for each combination of values of the axes `across`, and a row for each
    combination of the workload and the values of all other axes.
    """
    down = _axes_down(sweep, across)
    columns = _columns(sweep, across)
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for cell_result in result.cells:
        cell = cell_result.cell
        head = (cell.workload.label, *fmt.axis_texts(cell, down))
        column = _column(cell, across)
        if column in rows.get(head, {}):  # another cell of these axes, such as a longer one
            head = (f"{cell.workload.label} {cell.id}", *head[1:])
        row = rows.setdefault(head, {})
        row[column] = fmt.throughput(cell_result.throughput)
    table = Table(["workload", *down, *columns], [*columns, *fmt.NUMERIC_AXES])
    for head, row in rows.items():
        texts = list(head)
        for column in columns:
            texts.append(row.get(column, fmt.MISSING))  # a combination may have been excluded
        table.add_row(*texts)
    return table


def ratio_table(sweep: Sweep, result: SweepResult, across: Sequence[str]) -> Table:
    """Return a table of the throughput of the other columns relative to the first, by workload.

    Axes that are not across differ between the pairs of a ratio and not within one, so that the
    ratio is the mean effect of what is across.
    """
    down = _axes_down(sweep, across)
    first_column, *other_columns = _columns(sweep, across)
    titles = [f"{column} : {first_column}" for column in other_columns]
    table = Table(["workload", *titles], titles)
    for workload, pairings in _paired_throughputs(result.all_records, across, down).items():
        pairs = list(pairings.values())
        texts = [workload]
        for column in other_columns:
            texts.append(_mean_ratio(pairs, column, first_column))
        table.add_row(*texts)
    return table


def _paired_throughputs(
    records: Sequence[Record], across: Sequence[str], down: Sequence[str]
) -> dict[str, dict[Pairing, dict[str, float]]]:
    """Return throughputs by workload, then by all that a pair shares, then by column.

    Of trials that are done; two trials are a pair if they are alike in all but the axes across.
    """
    workloads: dict[str, dict[Pairing, dict[str, float]]] = {}
    for record in records:
        measured = record.summary.throughput if record.summary else None
        if record.status != "done" or not measured:
            continue
        cell = record.trial.cell
        code = cell.workload.code
        code_text = "" if code is None else repr(sorted(code.files.items()))
        lengths_and_code = (cell.length_text, str(cell.evaluate), code_text)
        number = (record.trial.seed, record.trial.repeat)
        pairing = (*fmt.axis_texts(cell, down), *lengths_and_code, *number)
        pairings = workloads.setdefault(cell.workload.label, {})
        pairings.setdefault(pairing, {})[_column(cell, across)] = measured
    return workloads


def _mean_ratio(rows: Sequence[Mapping[str, float]], column: str, first_column: str) -> str:
    """Return the geometric mean ratio of two columns over pairs: `1.23 [1.20, 1.26], 3 pairs`.

    A pair is a row that has both columns. What a seed brings is the same on both sides of a pair
    and cancels, so that every pair counts, repeats of a seed included. The mean and its interval
    are computed from logarithms of ratios; one pair or two have no interval.
    """
    ratios = []
    for row in rows:
        if column in row and first_column in row:
            ratios.append(row[column] / row[first_column])
    if not ratios:
        return fmt.MISSING
    ratio = geometric_mean_interval(ratios)
    pairs = counted(ratio.count, "pair")
    bounds = fmt.shown_bounds(ratio)
    if bounds is None:
        return f"{ratio.mean:.2f}, {pairs}"
    low, high = bounds
    return f"{ratio.mean:.2f} [{low:.2f}, {high:.2f}], {pairs}"


def _axes_down(sweep: Sweep, across: Sequence[str]) -> list[str]:
    """Return the varying axes that are not across; raises BadInput for one across that is fixed."""
    varying = varying_axes(sweep.cells)
    for axis in across:
        if axis not in varying:
            raise BadInput(
                f"--pivot: found {axis!r}, in which the cells do not differ;"
                f" {did_you_mean(axis, varying)}"
            )
    return [axis for axis in varying if axis not in across]


def _columns(sweep: Sweep, across: Sequence[str]) -> list[str]:
    """Return the titles of the columns, in the order of the sweep's cells.

    So the first column, to which the others are compared, is that of the sweep's first values.
    """
    columns: list[str] = []
    for cell in sweep.cells:
        column = _column(cell, across)
        if column not in columns:
            columns.append(column)
    return columns


def _column(cell: Cell, across: Sequence[str]) -> str:
    """Return the title of a cell's column: its values of the axes across."""
    return " ".join(fmt.axis_texts(cell, across))
