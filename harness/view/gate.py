"""Shows `harness gate`, `bisect` and `certify`, in the terminal and as Markdown for a pull request.

In a gate A is the other revision and B the working tree: "before" and "now" in the table.
"""

from __future__ import annotations

import os
from collections import Counter
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
HEADINGS = {0: "passes", 1: "fails", 3: "is inconclusive"}  # by exit code


def gate_view(outcome: GateOutcome, name: str) -> View:
    """Return the gate's verdict, the table, a sentence for each cell that does not pass, and the caption.

    `name` is the sweep's.
    """
    columns = ["cell", "before", "now", "change", "verdict", "bits", "measured"]
    table = Table(columns, {"before": "rate", "now": "rate"})
    for cell in outcome.cells:
        paired = cell.measured
        verdict = "failed" if paired.failure else paired.verdict
        bits = {True: "same", False: "differ", None: None}[paired.same_bits]
        rates = [paired.a_rate, paired.b_rate, _change(paired)]
        cost = describe_cost(paired)
        table.add_row(cell.cell.label, *rates, styled(verdict), bits, cost)
    heading = Styled(f"The gate of {name} {headline(outcome)}", "strong")
    revision = _revision_name(outcome)
    notes = {cell.cell.label: _note(outcome, cell) for cell in outcome.cells}
    lines: list[Value] = [f"{label}: {note}" for label, note in notes.items() if note]
    for label in outcome.lost:
        hint = "; if that is meant: --accept-sweep-changes" * (label in outcome.refused_losses)
        lines.append(f"{label}: the sweep of {revision} has it, and this one has not{hint}")
    for label in outcome.new:
        lines.append(f"{label}: not measured, because {revision} has no such cell")
    lines.append(Styled(_caption(outcome), "quiet"))
    return View(result=outcome, heading=[heading], tables=[table], lines=lines)


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
        return f"failed: {paired.failure}"
    return f"{paired.verdict}, {_change(paired) or 'too few measurements for an interval'}"


def describe_cost(paired: PairedResult) -> str | None:
    """Return how long a cell was measured: `21.0 s in 6 min 2 s, 12 pairs`."""
    if not paired.pairs:
        return None
    pairs = counted(paired.pairs, "pair")
    return f"{paired.seconds:.1f} s in {duration(paired.wall_seconds)}, {pairs}"


def progress_line(outcome: CellOutcome) -> str:
    """Return a line about a cell that has been measured, for a log."""
    parts = [describe_measurement(outcome.measured), describe_cost(outcome.measured)]
    return f"{outcome.cell.label}: {'; '.join(filter(None, parts))}"


def _caption(outcome: GateOutcome) -> str:
    """Return what the numbers are, and what they were measured on."""
    units = " or ".join(sorted({cell.measured.unit for cell in outcome.cells})) or "samples/s"
    revision = f"{_revision_name(outcome)} ({outcome.commit[:SHORT_COMMIT]})"
    load = ""
    if outcome.load is not None:
        load = f" at a load of {outcome.load:.1f} on {os.cpu_count()} cores"
    return (
        f"{units} of {revision} and of the working tree, measured in turn on {outcome.hardware}{load};"
        f" smallest change that matters: {outcome.options.min_effect:.1%};"
        f" intervals: {1 - ALPHA:.0%} for all cells together"
    )


def _revision_name(outcome: GateOutcome) -> str:
    """Return the revision as the user wrote it; a commit's id, as CI passes it, is abbreviated."""
    revision = outcome.options.revision
    return outcome.commit[:SHORT_COMMIT] if outcome.commit.startswith(revision) else revision


def headline(outcome: GateOutcome) -> str:
    """Return the gate's verdict with its exit code's meaning: `fails: 1 of 2 cells`."""
    heading = HEADINGS[outcome.exit_code]
    if outcome.has_no_cells:
        return f"{heading}: no cell was measured"
    lost = len(outcome.refused_losses)
    failed = sum(map(outcome.has_failed, outcome.cells))
    inconclusive = sum(map(outcome.is_inconclusive, outcome.cells))
    problems = []
    if not outcome.exit_code:
        problems.append(f"nothing is slower than {_revision_name(outcome)}")
    if lost:
        problems.append(f"the sweep lost or changed {counted(lost, 'cell')}")
    if failed:
        problems.append(f"{failed} of {counted(len(outcome.cells), 'cell')} failed")
    if inconclusive:
        problems.append(f"{inconclusive} of {counted(len(outcome.cells), 'cell')} inconclusive")
    return f"{heading}: {'; '.join(problems)}"


def step_line(step: Step) -> list[str | Styled]:
    """Return a commit with its mark, while a bisection runs."""
    mark = step.finding.mark
    finding = f"  {step.commit.short}  {_describe(step.finding)}  "
    return [styled(mark), finding, Styled(step.commit.subject, "quiet")]


def _describe(finding: Finding) -> str:
    """Return what a comparison found, in words."""
    if finding.failure is not None:
        return f"failed: {finding.failure}"
    if finding.measured is None:
        losses = "the same losses" if finding.mark == "good" else "other losses"
        return f"{losses} within {finding.steps} steps"
    text = f"{describe_measurement(finding.measured)}, {describe_cost(finding.measured)}"
    return text if finding.is_certain else f"{text}: the likelier is {finding.mark}"


def bisect_view(outcome: BisectOutcome) -> View:
    """Return the first bad commit, or all that it may be.

    The last line says how many commits were measured, against which, and with what result.
    """
    marks = Counter(step.finding.mark for step in outcome.steps)
    counts = ", ".join(f"{count} {mark}" for mark, count in marks.items())
    last_line = f"{outcome.cell.label}; each commit against {outcome.options.good}: {counts}"
    # Only a single suspect is measured against its parent.
    if outcome.against_parent is None:
        suspects = [f"  {suspect.short} {suspect.subject}" for suspect in outcome.suspects]
        heading = f"The first bad commit is one of these {len(suspects)}:"
        return View(result=outcome, lines=[heading, *suspects, last_line])
    (commit,) = outcome.suspects
    against_parent = f"against its parent: {_describe(outcome.against_parent)}"
    # Where it is not bad against its parent, several commits may have made the cell slower, each by
    # too little to be certain.
    if outcome.exit_code:
        against_parent += "; so it is not certain that this is the commit"
    heading = f"{commit.id} is the first bad commit"
    about = f"    {commit.subject} ({commit.author}, {commit.date})"
    return View(result=outcome, lines=[heading, about, against_parent, last_line])


def certificate_view(certificate: Certificate, path: Path) -> View:
    """Return what was measured, and what it says of this machine; `path` is that of the certificate."""
    settings = certificate.settings
    verdicts = Counter(comparison.verdict for comparison in certificate.comparisons)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    count = len(certificate.comparisons)
    low, high = certificate.false_alarm_interval
    conclusion = "a gate on this machine can be trusted, as far as so many comparisons tell"
    if not certificate.holds:
        conclusion = "a gate on this machine can't be trusted"
    lines: list[Value] = [
        f"{settings.label} against itself on {certificate.key}: {counts}",
        f"at most {settings.seconds:g} s each; smallest change that matters: {settings.min_effect:.1%};"
        f" noise floor: {certificate.noise_floor:.1%}",
        Styled(str(path), "quiet"),
        Styled(
            f"{certificate.false_alarms} of {count} false alarms ({low:.1%} to {high:.1%},"
            f" {MAX_FALSE_ALARMS:.0%} are allowed): {conclusion}",
            "better" if certificate.holds else "worse",
        ),
    ]
    return View(result=certificate, lines=lines)
