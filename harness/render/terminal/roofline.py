"""Prints how close the cells of a sweep come to their roofs, and leaves the plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.markup import escape

from harness.core.paths import Results
from harness.core.text import counted
from harness.hardware.machine import Machine
from harness.hardware.roofline import machine_of
from harness.records.record import Record
from harness.render import chart
from harness.render.roofline import describe_shares, draw_roofline, roofline_cells
from harness.spec.sweep import Sweep


def roofline_lines(
    sweep: Sweep, records: Sequence[Record], results: Results, measured: Mapping[str, Machine]
) -> list[str]:
    """Draw the plot, and return lines that say where it is and how close to the roof cells came.

    `measured` are the measured machines by key. Without the one that the trials ran on, the line
    names the command that measures it.
    """
    done = [record for record in records if record.status == "done"]
    if not done:
        return []
    machine = _most_frequent_machine(done, measured)
    if machine is None:
        return ["[dim]harness peak measures this machine: MFU and a roofline for these cells[/]"]
    # A plot has the roofs of one machine; trials of any other have no place under them.
    on_machine = [record for record in done if machine_of(record, measured) is machine]
    cells = roofline_cells(sweep, on_machine, machine)
    if not cells:
        return []
    path = results.sweep_folder(sweep.name).roofline_path
    chart.save_png(draw_roofline(sweep.name, cells, machine), path)
    line = f"roofline: {escape(describe_shares(cells))}; {escape(str(path))}"
    omitted = len({record.trial.cell.id for record in done}) - len(cells)
    if omitted:
        cells_omitted = counted(omitted, "cell")
        line += f" [dim](not placed: {cells_omitted}, whose traffic or roof is not known)[/]"
    return [line]


def _most_frequent_machine(
    records: Sequence[Record], measured: Mapping[str, Machine]
) -> Machine | None:
    """Return the measured machine that most of the records are of, None if there is none."""
    counts: Counter[int] = Counter()
    machines_by_identity: dict[int, Machine] = {}
    for record in records:
        machine = machine_of(record, measured)
        if machine is not None:
            counts[id(machine)] += 1
            machines_by_identity[id(machine)] = machine
    if not counts:
        return None
    ((identity, _),) = counts.most_common(1)
    return machines_by_identity[identity]
