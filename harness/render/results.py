"""Shows the results of a sweep: what it has shown, one table of its cells, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.markup import escape

from harness.analysis.parity import read_known_parity
from harness.analysis.sweep_result import SweepResult
from harness.core.paths import Results, tracking_flag
from harness.records.record import Record
from harness.render import format as fmt
from harness.render.cells import cells_table
from harness.render.console import WIDEST, TerminalConsole, show_table, styled
from harness.render.findings import conclusions, remarks
from harness.render.table import Styled
from harness.spec.sweep import Sweep

MOST_SENTENCES = 4  # on the fastest cells, one for each workload
MOST_REMARKS = 3
LEGEND = (
    "speed: against the first cell of the workload, same seeds paired; 95% intervals, corrected for the"
    " number of cells"
)


def show_results(
    sweep: Sweep,
    records: Sequence[Record],
    results: Results,
    *,
    trouble: str | None = None,
    tracking_uri: str | None = None,
    wide: bool = False,
) -> None:
    """Print which cells are fastest, the table of all cells, what to beware of, and what to do next.

    `trouble` is what MLflow at `tracking_uri` failed with. A `wide` table has all columns, however wide
    it gets, and all remarks follow it.
    """
    console = TerminalConsole()
    folder = results.sweep_folder(sweep.name)
    result = SweepResult.of_records(sweep, records)
    names = fmt.cell_names(result.all_cells, with_workload=True)
    short_names = fmt.cell_names(result.all_cells)
    sentences = conclusions(result, lambda cell: short_names[cell.id])
    found = remarks(result, records, lambda cell: names.get(cell.id, cell.label))
    if trouble:
        command = results.collect_command(sweep.name, tracking_uri)
        found.insert(0, Styled(f"MLflow is missing trials; deliver them later: {command}", "open"))
    if found and found[0].look == "worse":  # the numbers are not what the sentences make of them
        console.print_prose(styled(found[0].text, "worse"))
        del found[0]
    for sentence in sentences[:MOST_SENTENCES]:
        console.print_prose(escape(sentence))
    if sentences:
        console.print()
    parity = read_known_parity(folder, result.cells)
    table = cells_table(result, result.cells, parity, wide=wide, has_axes=wide)
    show_table(TerminalConsole(width=WIDEST) if wide else console, table)
    if result.comparison is not None:
        console.print_prose(styled(LEGEND, "quiet"))
    shown = found if wide else found[:MOST_REMARKS]
    for remark in shown:
        console.print_prose(styled(remark.text, remark.look))
    command = _next_command(sweep, records, results, tracking_uri)
    if len(shown) < len(found):
        command = f"harness show {shlex.quote(sweep.name)} --wide{results.flag}"
    console.print_text(f"next  {command}")


def _next_command(
    sweep: Sweep, records: Sequence[Record], results: Results, tracking_uri: str | None
) -> str:
    """Return the command to try next: the log of a trial that failed, or the curves in MLflow."""
    if not any(record.status == "done" for record in records):
        for record in records:
            if record.failure is not None and record.failure.log:
                trial_folder = results.sweep_folder(sweep.name).trial_folder(record.trial.id)
                return f"less {shlex.quote(str(trial_folder.path / record.failure.log))}"
    return f"harness ui{results.flag}{tracking_flag(tracking_uri)}"
