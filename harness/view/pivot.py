"""A sweep at a glance: throughput with some axes across and the others down."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from harness.cell import Cell
from harness.errors import BadInput, did_you_mean
from harness.record import Record
from harness.spec import Sweep
from harness.view.table import group, known, make_table, show, speed, telling_axes


def show_pivot(sweep: Sweep, records: Sequence[Record], across: Sequence[str]) -> None:
    """Print the table; raises BadInput for an axis in which the sweep's cells do not differ."""
    console = Console(highlight=False)
    show(console, pivot_table(sweep, records, across))
    done, trials = sum(record.status == "done" for record in records), len(sweep.trials())
    of = "means over trials ± 95% intervals" if trials > len(sweep.cells) else "one trial a cell"
    console.print(f"\nsamples/s, {of}; {done} of {trials} trials are done", soft_wrap=True)


def pivot_table(sweep: Sweep, records: Sequence[Record], across: Sequence[str]) -> Table:
    """A column for each combination of values of the axes `across`, a row for each of workload and all other axes."""
    telling = telling_axes(sweep.cells)
    for axis in across:
        if axis not in telling:
            raise BadInput(f"--across: found {axis!r}, in which the cells do not differ; {did_you_mean(axis, telling)}")
    down = [axis for axis in telling if axis not in across]
    done = group([record for record in records if record.status == "done"])
    columns = list(dict.fromkeys(_values(cell, across) for cell in sweep.cells))
    rows: dict[tuple[str, ...], dict[tuple[str, ...], str]] = {}
    for cell in sweep.cells:
        row = rows.setdefault((cell.choice.label, *_values(cell, down)), {})
        row[_values(cell, across)] = speed(known(done.get(cell.id, []), "throughput"))
    titles = [" ".join(column) for column in columns]
    table = make_table(["workload", *down, *titles], [*titles, "workers", "world_size", "batch_size", "threads"])
    for head, row in rows.items():
        table.add_row(*head, *(row.get(column, "–") for column in columns))
    return table


def _values(cell: Cell, axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(getattr(cell.axes, axis)) for axis in axes)
