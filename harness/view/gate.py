"""Shows `harness gate`, `bisect` and `certify`, in the terminal and as Markdown for a pull request.

In a gate A is the other revision and B the working tree: "before" and "now" in the table.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from harness.core.text import counted
from harness.gate.against import CellOutcome, GateOutcome
from harness.gate.bisect import BisectOutcome, Finding, Step
from harness.gate.certify import MAX_FALSE_ALARMS, Certificate
from harness.gate.paired import PairedResult
from harness.statistics.verdict import ALPHA
from harness.view.value import Effect, Styled, Value, duration, styled
from harness.view.view import Table, View

SHORT_COMMIT = 7  # characters, as git abbreviates
BITS = {True: "same", False: "differ", None: None}
HEADINGS = {0: "passes", 1: "fails", 3: "is inconclusive"}  # by exit code


def gate_view(outcome: GateOutcome, name: str) -> View:
    """Return the gate's verdict, the table, a sentence for each cell that does not pass, and the caption.

    `name` is the sweep's.
    """
    heading = Styled(f"The gate of {name} {headline(outcome)}", "strong")
    lines: list[Value] = []
    for cell in outcome.cells:
        note = _note(outcome, cell)
        if note:
            lines.append(f"{cell.cell.label}: {note}")
    revision = _revision_name(outcome)
    for label in outcome.lost:
        lines.append(f"{label}: the sweep of {revision} has it, and this one has not")
    for label in outcome.new:
        lines.append(f"{label}: not measured, because {revision} has no such cell")
    lines.append(Styled(_caption(outcome), "quiet"))
    return View(
        result=outcome,
        heading=[heading],
        tables=[_cells_table(outcome)],
        lines=lines,
        exit_code=outcome.exit_code,
    )


def _cells_table(outcome: GateOutcome) -> Table:
    """Return a table with a row for each cell."""
    columns = ["cell", "before", "now", "change", "verdict", "bits", "measured"]
    table = Table(columns, {"before": "rate", "now": "rate"})
    for cell in outcome.cells:
        paired = cell.measured
        verdict = "not measured" if paired.failure else paired.verdict
        table.add_row(
            cell.cell.label,
            paired.a_rate,
            paired.b_rate,
            _change(paired),
            styled(verdict),
            BITS[paired.same_bits],
            describe_cost(paired),
        )
    return table


def _note(outcome: GateOutcome, cell: CellOutcome) -> str:
    """Return why a cell failed or is inconclusive, nothing where its numbers say it."""
    paired = cell.measured
    if paired.failure:
        return paired.failure
    notes = []
    if paired.by_whole_turns:
        notes.append("in whole turns")
    if paired.verdict == "inconclusive":
        notes.append("--budget or a quieter machine narrows the interval")
    if outcome.options.compare_bits and paired.same_bits is False:
        revision = _revision_name(outcome)
        notes.append(f"its losses differ from those of {revision}")
        if not cell.is_repeatable:
            notes[-1] = f"its losses prove nothing: {revision} computes other ones each time"
    return "; ".join(notes)


def _change(paired: PairedResult) -> Effect | None:
    """Return the change of throughput, None where there is no interval."""
    if paired.ratio is None or paired.low is None or paired.high is None:
        return None
    return Effect(paired.ratio, (paired.low, paired.high), "change")


def describe_measurement(paired: PairedResult) -> str:
    """Return what was found of a cell: `slower, -5.0% (-6.0% to -4.0%)`, or why nothing was."""
    if paired.failure:
        return f"not measured: {paired.failure}"
    return f"{paired.verdict}, {_change(paired) or 'too few measurements for an interval'}"


def describe_cost(paired: PairedResult) -> str | None:
    """Return how long a cell was measured: `21.0 s in 6 min 2 s, 12 pairs`."""
    if not paired.pairs:
        return None
    pairs = counted(paired.pairs, "pair")
    return f"{paired.seconds:.1f} s in {duration(paired.wall_seconds)}, {pairs}"


def progress_line(outcome: CellOutcome) -> str:
    """Return a line about a cell that has been measured, for a log."""
    line = f"{outcome.cell.label}: {describe_measurement(outcome.measured)}"
    cost = describe_cost(outcome.measured)
    if cost is not None:
        line += f"; {cost}"
    return line


def _caption(outcome: GateOutcome) -> str:
    """Return what the numbers are, and what they were measured on."""
    units = {cell.measured.unit for cell in outcome.cells}
    rates = " or ".join(sorted(units)) or "samples/s"
    revision = f"{_revision_name(outcome)} ({outcome.commit[:SHORT_COMMIT]})"
    load = ""
    if outcome.load is not None:
        load = f" at a load of {outcome.load:.1f} on {os.cpu_count()} cores"
    return (
        f"{rates} of {revision} and of the working tree, measured in turn on {outcome.hardware}{load};"
        f" smallest change that matters: {outcome.options.min_effect:.1%};"
        f" intervals: {1 - ALPHA:.0%} for all cells together"
    )


def _revision_name(outcome: GateOutcome) -> str:
    """Return the revision as the user wrote it; a commit's id, as CI passes it, is abbreviated."""
    revision = outcome.options.revision
    if outcome.commit.startswith(revision):
        return outcome.commit[:SHORT_COMMIT]
    return revision


def headline(outcome: GateOutcome) -> str:
    """Return the gate's verdict with its exit code's meaning: `fails: 1 of 2 cells`."""
    problems = []
    cells = counted(len(outcome.cells), "cell")
    unmeasured = sum(bool(cell.measured.failure) for cell in outcome.cells)
    failed = sum(map(outcome.has_failed, outcome.cells)) - unmeasured
    inconclusive = sum(map(outcome.is_inconclusive, outcome.cells))
    if not outcome.exit_code:
        problems.append(f"nothing is slower than {_revision_name(outcome)}")
    if not outcome.cells:
        problems.append("no cell was measured")
    if outcome.lost:
        problems.append(f"the sweep lost or changed {counted(len(outcome.lost), 'cell')}")
    if failed:
        problems.append(f"{failed} of {cells} failed")
    if unmeasured:
        problems.append(f"{unmeasured} of {cells} could not be measured")
    if inconclusive:
        problems.append(f"{inconclusive} of {cells} inconclusive")
    return f"{HEADINGS[outcome.exit_code]}: {'; '.join(problems)}"


def step_line(step: Step) -> list[str | Styled]:
    """Return a commit with its mark, while a bisection runs."""
    return [
        styled(step.finding.mark),
        f"  {step.commit.short}  {_describe(step.finding)}  ",
        Styled(step.commit.subject, "quiet"),
    ]


def _describe(finding: Finding) -> str:
    """Return what a comparison found, in words."""
    if finding.failure is not None:
        return f"failed: {finding.failure}"
    if finding.measured is None:
        losses = "the same losses" if finding.mark == "good" else "other losses"
        return f"{losses} within {finding.steps} steps"
    text = f"{describe_measurement(finding.measured)}, {describe_cost(finding.measured)}"
    if not finding.is_certain:
        text += f": the likelier is {finding.mark}"
    return text


def bisect_view(outcome: BisectOutcome) -> View:
    """Return the first bad commit, or all that it may be.

    The last line says how many commits were measured, against which, and with what result.
    """
    marks = [step.finding.mark for step in outcome.steps]
    # Only a single suspect is measured against its parent.
    if outcome.against_parent is None:
        lines = [f"The first bad commit is one of these {len(outcome.suspects)}:"]
        for suspect in outcome.suspects:
            lines.append(f"  {suspect.short} {suspect.subject}")
    else:
        (commit,) = outcome.suspects
        lines = [
            f"{commit.id} is the first bad commit",
            f"    {commit.subject} ({commit.author}, {commit.date})",
            f"against its parent: {_describe(outcome.against_parent)}",
        ]
        # Where it is not bad against its parent, several commits may have made the cell slower, each by
        # too little to be certain.
        if outcome.exit_code:
            lines[-1] += "; so it is not certain that this is the commit"
    lines.append(
        f"{outcome.cell.label}; each commit against {outcome.options.good}: {_counts(marks)}"
    )
    return View(result=outcome, lines=lines, exit_code=outcome.exit_code)


def _counts(words: Iterable[str]) -> str:
    """Return how often each word was found: `3 good, 1 bad`."""
    counts = []
    for word, count in Counter(words).most_common():
        counts.append(f"{count} {word}")
    return ", ".join(counts)


def certificate_view(certificate: Certificate, path: Path) -> View:
    """Return what was measured, and what it says of this machine; `path` is that of the certificate."""
    settings = certificate.settings
    verdicts = [comparison.verdict for comparison in certificate.comparisons]
    low, high = certificate.false_alarm_interval
    conclusion = Styled("a gate on this machine can be trusted, as far as that tells", "better")
    if not certificate.holds:
        conclusion = Styled("a gate on this machine can't be trusted", "worse")
    lines: list[Value] = [
        f"{settings.label} against itself on {certificate.key}: {_counts(verdicts)}",
        f"at most {settings.seconds:g} s each; smallest change that matters: {settings.min_effect:.1%};"
        f" noise floor: {certificate.noise_floor:.1%}",
        Styled(str(path), "quiet"),
        f"{certificate.false_alarms} of {len(certificate.comparisons)} false alarms"
        f" ({low:.1%} to {high:.1%}, {MAX_FALSE_ALARMS:.0%} are allowed)",
        conclusion,
    ]
    return View(result=certificate, lines=lines, exit_code=int(not certificate.holds))
