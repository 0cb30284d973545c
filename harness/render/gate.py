"""Shows `harness gate`: a table, JSON, and Markdown for a pull request.

All three are made from one `GateOutcome`, and the sentence on a cell is the same in each of them. In
it A is the other revision and B the working tree: "before" and "now" in the tables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from rich.markup import escape

from harness.core.text import counted
from harness.gate.against import CellOutcome, GateOutcome
from harness.gate.paired import PairedResult
from harness.render.ci import escape_markdown, printable
from harness.render.console import TerminalConsole, show_table
from harness.render.format import (
    LARGEST_EFFECT,
    MISSING,
    SHORT_COMMIT,
    duration,
    samples_per_second,
)
from harness.render.table import Look, Styled, Table, markdown_lines
from harness.statistics.verdict import ALPHA

LOOKS: Mapping[str, Look] = {  # by verdict; any other is plain
    "slower": "worse",
    "failed": "worse",
    "faster": "better",
    "inconclusive": "open",
}
HEADINGS = {0: "passes", 1: "fails", 3: "is inconclusive"}  # by exit code
COLUMNS = ["cell", "before", "now", "change", "interval", "verdict", "bits", "measured"]
NUMBER_COLUMNS = ["before", "now", "change", "interval", "measured"]  # aligned to the right
NO_CELLS = "no cell was measured"
BITS = {True: "same", False: "differ", None: MISSING}  # by `PairedResult.same_bits`


def show_outcome(outcome: GateOutcome) -> None:
    """Print the table, what is wrong, and the gate's verdict."""
    console = TerminalConsole()
    table = Table(COLUMNS, NUMBER_COLUMNS)
    for cell_outcome in outcome.cells:
        verdict = _verdict(cell_outcome)
        styled = Styled(verdict + _turns(cell_outcome.measured), LOOKS.get(verdict, "plain"))
        table.add_row(
            printable(cell_outcome.cell.label),
            *_numbers(cell_outcome.measured),
            styled,
            BITS[cell_outcome.measured.same_bits],
            describe_cost(cell_outcome.measured),
        )
    show_table(console, table)
    console.print_text(f"\n{_caption(outcome)}", "quiet")
    for line in lines(outcome):
        console.print_text(line)
    console.print_markup(f"[bold]The gate {escape(headline(outcome))}.[/]")


def progress_line(outcome: CellOutcome) -> str:
    """Return a line about a cell that has been measured, for a log."""
    paired = outcome.measured
    label = printable(outcome.cell.label)
    if paired.failure:
        return f"{label}: failed: {printable(paired.failure)}"
    return f"{label}: {paired.verdict}, {describe_change(paired)}; {describe_cost(paired)}"


def describe_cost(paired: PairedResult) -> str:
    """Return how long a cell was measured: `21.0 s in 6 min 2 s, 12 pairs`."""
    if not paired.pairs:
        return MISSING
    pairs = counted(paired.pairs, "pair")
    return f"{paired.seconds:.1f} s in {duration(paired.wall_seconds)}, {pairs}"


def _caption(outcome: GateOutcome) -> str:
    """Return what the numbers are, and what they were measured on."""
    units = " or ".join(sorted({cell.measured.unit for cell in outcome.cells})) or "samples/s"
    revision = _revision_name(outcome)
    commit = outcome.commit[:SHORT_COMMIT]
    if revision != commit:  # `main (f8fea52)`
        revision += f" ({commit})"
    load = ""
    if outcome.load is not None:
        load = f" at a load of {outcome.load:.1f} on {os.cpu_count()} cores"
    return (
        f"{units} of {revision} and of the working tree, measured in turn on {outcome.hardware}{load};"
        f" smallest change that matters: {outcome.options.min_effect:.1%};"
        f" intervals: {1 - ALPHA:.0%} for all cells together"
    )


def _revision_name(outcome: GateOutcome) -> str:
    """Return the revision as the user wrote it; a commit's id is abbreviated.

    CI files often pass a full id, which makes sentences unreadable.
    """
    revision = printable(outcome.options.revision)
    if outcome.commit.startswith(revision):
        return outcome.commit[:SHORT_COMMIT]
    return revision


def headline(outcome: GateOutcome) -> str:
    """Return the gate's verdict with its exit code's meaning: `fails: 1 of 2 cells`."""
    heading = HEADINGS[outcome.exit_code]
    problems = "; ".join(_count_problems(outcome))
    if outcome.exit_code:
        return f"{heading}: {problems}"
    text = f"{heading}: nothing is slower than {_revision_name(outcome)}"
    return f"{text}; {problems}" if problems else text


def _count_problems(outcome: GateOutcome) -> list[str]:
    """Return how many cells were lost, failed and are inconclusive, as far as there are any."""
    if outcome.has_no_cells:
        return [NO_CELLS]
    cells = counted(len(outcome.cells), "cell")
    lost = len(outcome.refused_losses)
    failed = sum(outcome.has_failed(cell) for cell in outcome.cells)
    inconclusive = sum(outcome.is_inconclusive(cell) for cell in outcome.cells)
    problems = []
    if lost:
        problems.append(f"the sweep lost or changed {counted(lost, 'cell')}")
    if failed:
        problems.append(f"{failed} of {cells}")
    if inconclusive:
        is_verdict = outcome.exit_code == 3
        problems.append(
            f"{inconclusive} of {cells}" if is_verdict else f"{inconclusive} inconclusive"
        )
    return problems


def lines(outcome: GateOutcome) -> list[str]:
    """Return a sentence for each lost and new cell, and for each that failed or is inconclusive.

    Cells that pass have none: where there are no lines, the headline says it all.
    """
    revision = _revision_name(outcome)
    texts = []
    for label in outcome.lost:
        text = f"{printable(label)}: the sweep of {revision} has it, and this one has not"
        if label in outcome.refused_losses:
            text += "; if that is meant: --accept-sweep-changes"
        texts.append(text)
    for label in outcome.new:
        texts.append(f"{printable(label)}: not measured, because {revision} has no such cell")
    failed = [cell for cell in outcome.cells if outcome.has_failed(cell)]
    inconclusive = [cell for cell in outcome.cells if outcome.is_inconclusive(cell)]
    return texts + [sentence(outcome, cell) for cell in failed + inconclusive]


def sentence(outcome: GateOutcome, cell_outcome: CellOutcome) -> str:
    """Return what was measured of a cell: `mlp: slower, -5.0% (-6.0% to -4.0%) …`."""
    label = printable(cell_outcome.cell.label)
    paired = cell_outcome.measured
    if paired.failure:
        return f"{label}: failed: {printable(paired.failure)}"
    revision = _revision_name(outcome)
    text = (
        f"{label}: {paired.verdict}{_turns(paired)}, {describe_change(paired)} against {revision}"
    )
    if paired.verdict == "inconclusive":
        text += (
            f" after {describe_cost(paired)}; --budget or a quieter machine narrows the interval"
        )
    if outcome.options.compare_bits and paired.same_bits is False:
        if cell_outcome.is_repeatable:
            text += f"; its losses differ from those of {revision}"
        else:
            text += f"; its losses prove nothing, because {revision} computes other ones each time"
    return text


def describe_change(paired: PairedResult) -> str:
    """Return a change of throughput with its interval: `-5.0% (-6.0% to -4.0%)`."""
    if paired.ratio is None or paired.low is None or paired.high is None:
        return "too few measurements for an interval"
    low, high = _percent(paired.low), _percent(paired.high)
    return f"{_percent(paired.ratio)} ({low} to {high})"


def _numbers(paired: PairedResult) -> list[str]:
    """Return both throughputs, the change and its interval, as the table shows them."""
    if paired.ratio is None:
        return [MISSING] * 4
    interval = f"{_percent(paired.low)} to {_percent(paired.high)}"
    rates = [samples_per_second(paired.a_rate), samples_per_second(paired.b_rate)]
    return [*rates, _percent(paired.ratio), interval]


def _turns(paired: PairedResult) -> str:
    """Return what a verdict on whole turns ends with, nothing for any other."""
    return " in whole turns" if paired.by_whole_turns else ""


def _percent(ratio: float | None) -> str:
    """Return a ratio of throughputs as a signed change; a bound that is not known is unbounded."""
    if ratio is None:
        return "unbounded"
    if ratio > 1 + LARGEST_EFFECT:
        return f">{LARGEST_EFFECT:+,.0%}"
    return f"{ratio - 1:+.1%}"


def _verdict(cell_outcome: CellOutcome) -> str:
    """Return the verdict on a cell in a word."""
    return "failed" if cell_outcome.measured.failure else cell_outcome.measured.verdict


def markdown(outcome: GateOutcome, name: str) -> str:
    """Return a comment for a pull request, also fit for GitHub's step summary; `name` is the sweep's.

    The comment has the heading, a bullet for each cell that does not pass, the table, and the caption.
    """
    heading = headline(outcome).removeprefix("is ")
    caption = _caption(outcome)
    caption = caption[0].upper() + caption[1:]
    bullets = [f"- {escape_markdown(line)}" for line in lines(outcome)]
    table = Table(COLUMNS, NUMBER_COLUMNS)
    for cell_outcome in outcome.cells:
        paired = cell_outcome.measured
        verdict = _verdict(cell_outcome) + _turns(paired)
        if outcome.has_failed(cell_outcome):
            verdict = f"**{verdict}**"
        label = escape_markdown(cell_outcome.cell.label)
        cost = describe_cost(paired)
        table.add_row(label, *_numbers(paired), verdict, BITS[paired.same_bits], cost)
    text = [
        f"### Training speed of {escape_markdown(name)}: {escape_markdown(heading)}",
        "",
        *bullets,
        "",
        *markdown_lines(table, is_markup=True),
        "",
        escape_markdown(f"{caption}."),
    ]
    return "\n".join(text) + "\n"
