"""The files that show a sweep: its report and its roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.analysis.compare import Side
from harness.core.paths import Results, write_atomically
from harness.records.record import Record
from harness.records.store import RecordedSweep
from harness.render.chart import png_bytes
from harness.render.roofline import draw_roofline, sweep_roofline, with_measured_peaks
from harness.spec.sweep import Sweep


def write_report(
    path: Path,
    results: Results,
    recorded: RecordedSweep,
    against: Side | None = None,
    goal: float | None = None,
) -> None:
    """Write the report of a sweep that has run; the same records give the same bytes.

    `goal` is a value of the target metric, the steps to which are compared.

    Raises BadInput if there are no records, or if `against` cannot be compared with them.
    """
    from harness.render.html.page import render
    from harness.render.html.report import make_report

    report = make_report(results, recorded.sweep, recorded.records, against, goal)
    report = replace(
        report,
        unreadable_count=len(recorded.unreadable),
        other_code_count=recorded.other_code_count,
    )
    write_atomically(path, render(report))


def write_roofline(sweep: Sweep, records: Sequence[Record], results: Results) -> None:
    """Draw the roofline of a sweep into its folder, if its machine's peaks were measured."""
    records, machines = with_measured_peaks(records, results)
    roofline = sweep_roofline(sweep, records, machines)
    if roofline is not None and roofline.cells:
        figure = draw_roofline(sweep.name, roofline.cells, roofline.machine)
        path = results.sweep_folder(sweep.name).roofline_path
        write_atomically(path, png_bytes(figure))
