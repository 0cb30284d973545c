"""Says how close the cells of a sweep come to their roofs, and where the plot is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.markup import escape

from harness.core.paths import Results
from harness.core.text import counted
from harness.hardware.machine import Machine
from harness.records.record import Record
from harness.render.roofline import describe_shares, sweep_roofline
from harness.spec.sweep import Sweep


def roofline_lines(
    sweep: Sweep, records: Sequence[Record], results: Results, measured: Mapping[str, Machine]
) -> list[str]:
    """Return lines of markup that say how close to the roof cells came, and where the plot is.

    `measured` are the measured machines by key. Without the one that the trials ran on, the line
    names the command that measures it.
    """
    done = [record for record in records if record.status == "done"]
    if not done:
        return []
    roofline = sweep_roofline(sweep, done, measured)
    if roofline is None:
        return ["[dim]harness peak measures this machine: MFU and a roofline for these cells[/]"]
    if not roofline.cells:
        return []
    path = results.sweep_folder(sweep.name).roofline_path
    line = f"roofline: {escape(describe_shares(roofline.cells))}; {escape(str(path))}"
    omitted = len({record.trial.cell.id for record in done}) - len(roofline.cells)
    if omitted:
        cells_omitted = counted(omitted, "cell")
        line += f" [dim](not placed: {cells_omitted}, whose traffic or roof is not known)[/]"
    return [line]
