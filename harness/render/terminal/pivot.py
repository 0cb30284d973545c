"""A sweep at a glance: throughput with some axes across and the others down."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from harness.analysis.cells import group_by_cell, summary_values, varying_axes
from harness.core.errors import BadInput, did_you_mean
from harness.records.record import Record
from harness.render.format import counted
from harness.render.terminal.table import make_table, show, speed
from harness.spec.cell import Cell
from harness.spec.sweep import Sweep
from harness.statistics.interval import mean_interval


def show_pivot(sweep: Sweep, records: Sequence[Record], across: Sequence[str]) -> None:
    """Print the table; raises BadInput for an axis in which the sweep's cells do not differ."""
    console = Console(highlight=False)
    show(console, pivot_table(sweep, records, across))
    console.print()
    show(console, ratio_table(sweep, records, across))
    done, trials = sum(record.status == "done" for record in records), len(sweep.trials())
    of = "means over trials ± 95% intervals" if trials > len(sweep.cells) else "one trial a cell"
    ratios = "ratios are geometric means over pairs of trials that differ in nothing else, with 95% intervals"
    console.print(f"\nsamples/s, {of}, {done} of {trials} trials; {ratios}", soft_wrap=True)


def pivot_table(sweep: Sweep, records: Sequence[Record], across: Sequence[str]) -> Table:
    """A column for each combination of values of the axes `across`, a row for each of workload and all other axes."""
    telling = varying_axes(sweep.cells)
    for axis in across:
        if axis not in telling:
            raise BadInput(
                f"--across: found {axis!r}, in which the cells do not differ; {did_you_mean(axis, telling)}"
            )
    down = [axis for axis in telling if axis not in across]
    done = group_by_cell([record for record in records if record.status == "done"])
    columns = list(dict.fromkeys(_values(cell, across) for cell in sweep.cells))
    rows: dict[tuple[str, ...], dict[tuple[str, ...], str]] = {}
    for cell in sweep.cells:
        row = rows.setdefault((cell.workload.label, *_values(cell, down)), {})
        row[_values(cell, across)] = speed(summary_values(done.get(cell.id, []), "throughput"))
    titles = [" ".join(column) for column in columns]
    table = make_table(
        ["workload", *down, *titles],
        [*titles, "num_workers", "world_size", "batch_size", "num_threads"],
    )
    for head, row in rows.items():
        table.add_row(*head, *(row.get(column, "–") for column in columns))
    return table


def ratio_table(sweep: Sweep, records: Sequence[Record], across: Sequence[str]) -> Table:
    """What each other column has of the first one's throughput, a row a workload."""
    down = [axis for axis in varying_axes(sweep.cells) if axis not in across]
    columns = list(dict.fromkeys(_values(cell, across) for cell in sweep.cells))
    rates: dict[
        str, dict[Hashable, dict[tuple[str, ...], float]]
    ] = {}  # by workload, by all that a pair shares
    for record in records:
        if record.status == "done" and record.summary and record.summary.throughput:
            cell, shared = record.trial.cell, (record.trial.seed, record.trial.repeat)
            pairs = rates.setdefault(cell.workload.label, {})
            pairs.setdefault((*_values(cell, down), *shared), {})[_values(cell, across)] = (
                record.summary.throughput
            )
    first, *others = columns
    titles = [f"{' '.join(column)} : {' '.join(first)}" for column in others]
    table = make_table(["workload", *titles], titles)
    for label, pairs in rates.items():
        table.add_row(label, *(_ratio(list(pairs.values()), column, first) for column in others))
    return table


def _ratio(
    pairs: Sequence[Mapping[tuple[str, ...], float]],
    column: tuple[str, ...],
    first: tuple[str, ...],
) -> str:
    logs = [
        math.log(pair[column] / pair[first]) for pair in pairs if column in pair and first in pair
    ]
    if not logs:
        return "–"
    found = mean_interval(logs)
    low, high = (math.exp(found.mean + sign * (found.half_width or 0.0)) for sign in (-1, 1))
    spread = "" if found.half_width is None else f" [{low:.2f}, {high:.2f}]"
    return f"{math.exp(found.mean):.2f}{spread}, {counted(found.count, 'pair')}"


def _values(cell: Cell, axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(getattr(cell.axes, axis)) for axis in axes)
