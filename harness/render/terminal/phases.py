"""Where the time of each cell goes: a bar and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.analysis.cells import group_by_cell, varying_axes
from harness.records.record import Record, Summary
from harness.render.terminal.table import make_table, show
from harness.spec.cell import Cell
from harness.spec.sweep import Sweep

WIDTH = 32  # characters of a whole bar
LOOKS = {  # phase of a step -> column, style
    "data_wait": ("data wait", "yellow"),
    "host_to_device": ("to device", "bright_yellow"),
    "forward": ("forward", "green"),
    "backward": ("backward", "blue"),
    "communication": ("commun.", "red"),
    "optimizer": ("optimizer", "magenta"),
}
NEGLIGIBLE = 0.0005  # a share that would be printed as 0.0%


def show_phases(sweep: Sweep, records: Sequence[Record]) -> None:
    """Print, for each cell, the shares of its steps' phases and what its trials say of steadiness and stragglers."""
    console = Console(highlight=False)
    by_cell = group_by_cell(
        [record for record in records if record.status == "done" and record.summary]
    )
    found = {
        cell.id: [r.summary for r in by_cell.get(cell.id, []) if r.summary] for cell in sweep.cells
    }
    shares = {cell_id: _mean_shares(summaries) for cell_id, summaries in found.items()}
    phases = [
        phase for phase in LOOKS if any(row.get(phase, 0.0) > NEGLIGIBLE for row in shares.values())
    ]
    table = _empty(sweep.cells, phases)
    for cell in sweep.cells:
        row, summaries = shares[cell.id], found[cell.id]
        table.add_row(
            cell.id,
            cell.workload.label,
            *(str(getattr(cell.axes, axis)) for axis in varying_axes(sweep.cells)),
            _bar(row),
            *(f"{row[phase]:.1%}" if phase in row else "–" for phase in phases),
            _straggler(summaries),
            _steadiness(summaries),
        )
    show(console, table)
    legend = Text("each bar is a step: ").append_text(
        Text("  ").join(_legend(phase) for phase in phases)
    )
    console.print(legend, soft_wrap=True)


def _empty(cells: Sequence[Cell], phases: Sequence[str]) -> Table:
    columns = [LOOKS[phase][0] for phase in phases]
    numbers = [*columns, "skew", "world_size", "num_workers", "batch_size", "num_threads"]
    return make_table(
        ["cell", "workload", *varying_axes(cells), "step", *columns, "skew", "steady"], numbers
    )


def _mean_shares(summaries: Sequence[Summary]) -> dict[str, float]:
    names = [name for name in LOOKS if any(name in summary.shares for summary in summaries)]
    return {name: fmean(summary.shares.get(name, 0.0) for summary in summaries) for name in names}


def _bar(shares: Mapping[str, float]) -> Text:
    bar, filled, whole = Text(), 0, 0.0
    for phase, share in shares.items():
        whole += share
        end = round(whole * WIDTH)
        bar.append("█" * (end - filled), style=LOOKS[phase][1])
        filled = end
    return bar


def _legend(phase: str) -> Text:
    name, style = LOOKS[phase]
    return Text("█ ", style=style).append(name, style="default")


def _straggler(summaries: Sequence[Summary]) -> str:
    """The mean skew, and the rank that the others waited for if it was the same one in every trial."""
    slowest = [summary.slowest for summary in summaries if summary.slowest]
    if not slowest:
        return "–"
    ranks = {one.rank for one in slowest}
    return f"{fmean(one.skew for one in slowest):.1%}" + (
        f" rank {ranks.pop()}" if len(ranks) == 1 else ""
    )


def _steadiness(summaries: Sequence[Summary]) -> Text:
    if not summaries:
        return Text("–")
    never = sum(summary.settled is False for summary in summaries)
    if never:
        return Text(f"never, {never} of {len(summaries)}", style="yellow")
    starts = [summary.window_start for summary in summaries if summary.window_start is not None]
    known = all(summary.settled for summary in summaries)
    return Text(f"from step {max(starts)}" if known and starts else "too few steps to tell")
