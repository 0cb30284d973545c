"""Shows `harness show SWEEP --phases`: where the time of each cell's steps goes, and what less of it saves.

A phase is a part of a step, such as the forward pass. Shares are fractions of a step's time, so
that cells of different speed can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.text import Text

from harness.analysis.cells import group_by_cell, varying_axes
from harness.analysis.what_if import QUESTIONS, what_if
from harness.records.record import Record, Summary
from harness.render import format as fmt
from harness.render.console import TerminalConsole, narrowed, show_table
from harness.render.table import TERMINAL_STYLES, Content, Look, Styled, Table
from harness.spec.sweep import Sweep
from harness.statistics.interval import Interval

BAR_WIDTH = 32  # characters of a whole bar in a wide table
SHORT_BAR_WIDTH = 12
# Of a table that would be wider than the terminal, in the order in which they are left out.
OPTIONAL_COLUMNS = ("skew", "steady", "step")
NEGLIGIBLE = 0.0005  # a share that would be printed as 0.0%
WHAT_IF_NOTE = (
    "by how much throughput would grow, from the recorded phases: geometric means over trials with 95%"
    " intervals; no slowest rank: if it took as long as the others"
)


@dataclass(frozen=True)
class PhaseStyle:
    """How a phase of a step is shown."""

    column: str  # the heading of its column
    look: Look


PHASES = {
    "data_wait": PhaseStyle("data wait", "data wait"),
    "host_to_device": PhaseStyle("to device", "to device"),
    "forward": PhaseStyle("forward", "forward"),
    "backward": PhaseStyle("backward", "backward"),
    "communication": PhaseStyle("commun.", "communication"),
    "optimizer": PhaseStyle("optimizer", "optimizer"),
}


def show_phases(sweep: Sweep, records: Sequence[Record], *, wide: bool) -> None:
    """Print the shares of each cell's phases, its stragglers, when it became steady, and what-ifs.

    Shares are of the measured steps' time, in the mean over ranks and over the trials that are
    done. A cell without such a trial has a row of dashes and an empty bar. Unless it is `wide`, the
    table has the names of cells instead of their ids and axes, and no more columns than fit.
    """
    console = TerminalConsole()
    done = _done_by_cell(sweep, records)
    summaries = {
        cell: [record.summary for record in of_cell if record.summary]
        for cell, of_cell in done.items()
    }
    shares = {}
    for cell in sweep.cells:
        shares[cell.id] = _mean_shares(summaries[cell.id])
    phases = _visible_phases(list(shares.values()))
    axes = varying_axes(sweep.cells)
    names = fmt.cell_names(sweep.cells, with_workload=True)
    columns = [PHASES[phase].column for phase in phases]
    numbers = [*columns, "skew", *fmt.NUMERIC_AXES]
    identity = ["cell", "workload", *axes] if wide else ["cell"]
    wrapped = [] if wide else ["cell"]
    table = Table([*identity, "step", *columns, "skew", "steady"], numbers, wrapped=wrapped)
    for cell in sweep.cells:
        cell_shares = shares[cell.id]
        row: list[Content] = [names[cell.id]]
        if wide:
            row = [cell.id, cell.workload.label, *fmt.axis_texts(cell, axes)]
        row.append(_bar(cell_shares, BAR_WIDTH if wide else SHORT_BAR_WIDTH))
        for phase in phases:
            row.append(fmt.share(cell_shares.get(phase)))
        row.append(_straggler(summaries[cell.id]))
        row.append(_steadiness(summaries[cell.id]))
        table.add_row(*row)
    show_table(console, table if wide else narrowed(table, OPTIONAL_COLUMNS))
    console.print_markup(_legend(phases))
    gains = what_if_table({names[cell.id]: what_if(done[cell.id]) for cell in sweep.cells})
    if gains.rows:
        console.print()
        show_table(console, gains)
        console.print_prose(WHAT_IF_NOTE)


def _done_by_cell(sweep: Sweep, records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records of the trials that are done, by cell id, of every cell of the sweep."""
    by_cell = group_by_cell(records)
    done = {}
    for cell in sweep.cells:
        of_cell = by_cell.get(cell.id, [])
        done[cell.id] = [record for record in of_cell if record.status == "done"]
    return done


def what_if_table(answers: Mapping[str, Mapping[str, Interval]]) -> Table:
    """Return by how much each cell would be faster without one of its waits, by its name.

    Only cells and questions of which at least one answer is more than negligible are in it.
    """
    questions = []
    for question in QUESTIONS:
        if any(_matters(answer.get(question)) for answer in answers.values()):
            questions.append(question)
    table = Table(["what if", *questions], questions, wrapped=["what if"])
    for name, answer in answers.items():
        if any(_matters(answer.get(question)) for question in questions):
            table.add_row(name, *[fmt.gain(answer.get(question)) for question in questions])
    return table


def _matters(gain: Interval | None) -> bool:
    """Return whether a gain would not be printed as +0.0%."""
    return gain is not None and gain.mean > 1 + NEGLIGIBLE


def _mean_shares(summaries: Sequence[Summary]) -> dict[str, float]:
    """Return the mean share of each phase that any of the trials has; one that lacks it has 0.

    The order is that of PHASES, in which they follow each other in a step and in its bar.
    """
    measured: set[str] = set()
    for summary in summaries:
        measured.update(summary.shares)
    shares = {}
    for phase in PHASES:
        if phase in measured:
            shares[phase] = fmean(summary.shares.get(phase, 0.0) for summary in summaries)
    return shares


def _visible_phases(shares: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the phases that take more than a negligible share of any cell's step.

    Many sweeps have no communication, or no copies to a device: their columns would be empty.
    """
    return [phase for phase in PHASES if any(of.get(phase, 0.0) > NEGLIGIBLE for of in shares)]


def _bar(shares: Mapping[str, float], width: int) -> list[Styled]:
    """Return a bar of `width` characters, divided by the shares.

    The end of each part is rounded rather than its width, so that rounding errors do not add up.
    """
    bar = []
    filled, total = 0, 0.0
    for phase, share in shares.items():
        total += share
        end = round(total * width)
        bar.append(Styled("█" * (end - filled), PHASES[phase].look))
        filled = end
    return bar


def _legend(phases: Sequence[str]) -> Text:
    """Return a line that names the colors of the bars."""
    legend = Text("each bar is a step: ")
    for number, phase in enumerate(phases):
        if number:
            legend.append("  ")
        legend.append("█ ", style=TERMINAL_STYLES[PHASES[phase].look])
        # `default` ends the color of the block before it.
        legend.append(PHASES[phase].column, style="default")
    return legend


def _straggler(summaries: Sequence[Summary]) -> str:
    """Return the mean skew, and the rank that the others waited for if it was always the same.

    The skew is the share of its time that another rank spent waiting for the slowest one. One that
    is slowest in every trial points at its node or GPU.
    """
    skews, ranks = [], set()
    for summary in summaries:
        if summary.slowest:
            skews.append(summary.slowest.skew)
            ranks.add(summary.slowest.rank)
    if not skews:
        return fmt.MISSING
    mean_skew = fmt.share(fmean(skews))
    if len(ranks) > 1:
        return mean_skew
    return f"{mean_skew} rank {ranks.pop()}"


def _steadiness(summaries: Sequence[Summary]) -> Content:
    """Return the step from which all trials were steady, or how many never were.

    A trial that never settles is measured all the same, from its last steps, and is not to be
    trusted much; that is why it is yellow.
    """
    if not summaries:
        return fmt.MISSING
    settled = [summary.settled for summary in summaries]
    if False in settled:
        return Styled(f"never, {settled.count(False)} of {len(settled)}", "open")
    # The latest, since all trials are steady only from there on.
    last_start = -1
    for summary in summaries:
        if summary.window_start is not None:
            last_start = max(last_start, summary.window_start)
    if None in settled or last_start < 0:
        return "too few steps to tell"
    return f"from step {last_start}"
