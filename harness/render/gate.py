"""Shows `harness gate`: a table, JSON, Markdown for a pull request, and JUnit XML.

All four are made from one `GateOutcome`, and the sentence on a cell is the same in each of them. In
it A is the other revision, or the other stack, and B the working tree, or the cell's own stack:
"before" and "now" in the tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from rich.markup import escape

from harness.core.text import counted, listed
from harness.gate.accuracy import AccuracyResult
from harness.gate.against import CellOutcome, GateOutcome
from harness.gate.explanation import Explanation
from harness.gate.paired import PairedResult
from harness.gate.sweep_changes import SweepChange
from harness.render.ci import add_problem, escape_markdown, printable
from harness.render.console import TerminalConsole, show_table
from harness.render.explain import json_content
from harness.render.format import (
    LARGEST_EFFECT,
    MISSING,
    MOST_PACKAGES,
    SHORT_COMMIT,
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
EXIT_INCONCLUSIVE = 3
HEADINGS = {0: "passes", 1: "fails", EXIT_INCONCLUSIVE: "is inconclusive"}  # by exit code
COLUMNS = ["cell", "before", "now", "change", "interval", "verdict", "bits", "measured"]
NUMBER_COLUMNS = ["before", "now", "change", "interval", "measured"]  # aligned to the right
NO_CELLS = "no cell was measured"
BITS = {True: "same", False: "differ", None: MISSING}  # by `PairedResult.same_bits`


def show_outcome(outcome: GateOutcome) -> None:
    """Print the table, the certificate of this machine, what is wrong, and the gate's verdict."""
    console = TerminalConsole()
    table = Table(COLUMNS, NUMBER_COLUMNS)
    for cell_outcome in outcome.cells:
        _add_row(table, cell_outcome.cell.label, cell_outcome.measured)
        if cell_outcome.control is not None:
            _add_row(table, "↳ control", cell_outcome.control)
    show_table(console, table)
    console.print_text(f"\n{_caption(outcome)}", "quiet")
    console.print_text(outcome.conditions.certificate, "quiet")
    for line in describe_packages(outcome):
        console.print_text(line)
    for cell_outcome in outcome.cells:
        # `lines` names the others.
        passes = not (outcome.has_failed(cell_outcome) or outcome.is_inconclusive(cell_outcome))
        if cell_outcome.accuracy is not None and passes:
            console.print_text(sentence(outcome, cell_outcome))
    for line in lines(outcome):
        console.print_text(line)
    console.print_markup(f"[bold]The gate {escape(headline(outcome))}.[/]")


def _add_row(table: Table, label: str, paired: PairedResult) -> None:
    """Add the row of a cell or of its control: one text for each of `COLUMNS`."""
    verdict = "failed" if paired.failure else paired.verdict
    cost = MISSING
    if paired.pairs:
        cost = f"{paired.seconds:.1f} s, {counted(paired.pairs, 'pair')}"
    table.add_row(
        printable(label),
        *_numbers(paired),
        Styled(verdict + _turns(paired), LOOKS.get(verdict, "plain")),
        BITS[paired.same_bits],
        cost,
    )


def _caption(outcome: GateOutcome) -> str:
    """Return what the numbers are, what they were measured on, and what the intervals mean."""
    conditions = outcome.conditions
    units = " or ".join(sorted({cell.measured.unit for cell in outcome.cells})) or "samples/s"
    options = outcome.options
    measured = "the cells' own stacks" if options.stack else "the working tree"
    min_effect = f"{options.min_effect:.1%}"
    if options.min_effect_source:  # a certificate
        min_effect += f" ({options.min_effect_source})"
    revision = _revision_name(outcome)
    commit = outcome.commit[:SHORT_COMMIT]
    if not options.stack and revision != commit:  # `main (f8fea52)`; a stack has no commit
        revision += f" ({commit})"
    sides: list[PairedResult | None] = []
    for cell_outcome in outcome.cells:
        sides += [cell_outcome.measured, cell_outcome.control]
    whole_turns = ""
    if any(paired is not None and paired.by_whole_turns for paired in sides):
        whole_turns = (
            "; of a verdict on whole turns, change and interval are those of whole turns by the gate's"
            " own clock, and all other numbers are of undisturbed steps"
        )
    return (
        f"{units} of {revision} and of {measured},"
        f" measured in turn on {conditions.hardware} with torch {conditions.torch};"
        f" smallest change that matters: {min_effect};"
        f" the intervals hold with {1 - ALPHA:.0%} confidence for all cells together,"
        " however often they are looked at"
        f"{whole_turns}"
    )


def _revision_name(outcome: GateOutcome) -> str:
    """Return the revision as the user wrote it; a commit's id is abbreviated.

    CI files often pass a full id, which makes sentences unreadable. A stack goes by its name.
    """
    if outcome.options.stack:
        return f"stack {printable(outcome.options.stack)}"
    revision = printable(outcome.options.revision)
    if outcome.commit.startswith(revision):
        return outcome.commit[:SHORT_COMMIT]
    return revision


def describe_packages(outcome: GateOutcome) -> list[str]:
    """Return what each measured stack has in other versions than the one before, a line each."""
    lines = []
    for name, changes in outcome.package_changes.items():
        stacks = f"{outcome.options.stack} → {name}"
        text = f"packages that differ, {stacks}: {listed(changes, MOST_PACKAGES)}"
        lines.append(printable(text))
    return lines


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
    cell_count = len(outcome.cells)
    lost_count = len(outcome.refused_changes)
    failed_count = sum(outcome.has_failed(cell) for cell in outcome.cells)
    inconclusive_count = sum(outcome.is_inconclusive(cell) for cell in outcome.cells)
    problems = []
    if lost_count:
        problems.append(f"the sweep lost or changed {counted(lost_count, 'cell')}")
    if failed_count:
        problems.append(f"{failed_count} of {counted(cell_count, 'cell')}")
    if inconclusive_count and outcome.exit_code == EXIT_INCONCLUSIVE:
        problems.append(f"{inconclusive_count} of {counted(cell_count, 'cell')}")
    elif inconclusive_count:
        problems.append(f"{inconclusive_count} inconclusive")
    return problems


def lines(outcome: GateOutcome) -> list[str]:
    """Return a sentence for each change of the sweep, then for each cell that failed, then for each
    that is inconclusive.

    Cells that pass have none: where there are no lines, the headline says it all.
    """
    changes = [_describe_sweep_change(outcome, change) for change in outcome.sweep_changes]
    failed: list[str] = []
    inconclusive: list[str] = []
    for cell in outcome.cells:
        if outcome.has_failed(cell):
            failed.append(sentence(outcome, cell))
        elif outcome.is_inconclusive(cell):
            inconclusive.append(sentence(outcome, cell))
    return changes + failed + inconclusive


def _describe_sweep_change(outcome: GateOutcome, change: SweepChange) -> str:
    """Return how the sweep differs from the revision's, and how to let it pass."""
    text = printable(change.text)
    if change in outcome.refused_changes:
        text += "; if that is meant: --accept-sweep-changes"
    return text


def sentence(outcome: GateOutcome, cell_outcome: CellOutcome) -> str:
    """Return what was measured of a cell, in a sentence that begins with the cell's label."""
    label = printable(cell_outcome.cell.label)
    paired = cell_outcome.measured
    if paired.failure:
        return f"{label}: failed: {printable(paired.failure)}"
    text = f"{label}: {_describe_speed(outcome, cell_outcome)}"
    if outcome.options.compare_bits and paired.same_bits is False:
        text += f"; its losses differ from those of {_revision_name(outcome)}"
    if cell_outcome.accuracy is not None:
        text += f"; {describe_accuracy(cell_outcome.accuracy)}"
    return text


def describe_accuracy(accuracy: AccuracyResult) -> str:
    """Return what was learned: `worse accuracy: 0.9512 → 0.4310, -0.5202 (-0.53 to -0.51), …`."""
    if accuracy.before is None or accuracy.now is None:
        return f"its accuracy is unknown: {printable(accuracy.failure or 'it did not train')}"
    interval = ""
    if accuracy.low is not None and accuracy.high is not None:
        interval = f" ({accuracy.low:+.4f} to {accuracy.high:+.4f})"
    return (
        f"{accuracy.outcome} {accuracy.metric}: {accuracy.before:.4f} → {accuracy.now:.4f},"
        f" {accuracy.now - accuracy.before:+.4f}{interval}, {accuracy.seeds} seeds;"
        f" what matters: {accuracy.margin:g}"
    )


def _describe_speed(outcome: GateOutcome, cell_outcome: CellOutcome) -> str:
    """Return the verdict on a cell's speed with the numbers that it rests on.

    A control that disagrees comes first: if the revision differs from itself, whatever the cell's
    own measurement says proves nothing.
    """
    revision = _revision_name(outcome)
    paired = cell_outcome.measured
    control = cell_outcome.control
    if control is not None and cell_outcome.control_disagrees:
        finding = f"came out {control.verdict}"
        if control.failure:
            finding = f"failed: {printable(control.failure)}"
        return f"inconclusive: {revision} measured against itself {finding}"
    if paired.is_slower_as_a_whole:
        return _describe_whole_turns(paired, revision)
    if paired.verdict in ("slower", "faster"):
        return _describe_change(paired, revision)
    if paired.verdict == "same":
        return f"trains as fast as {revision}, to within {outcome.options.min_effect:.1%}"
    if paired.verdict == "not slower":
        interval = _describe_interval(paired.verdict_bounds, revision)
        return f"is not slower by {outcome.options.min_effect:.1%}: {interval}"
    measured = "whole turns are " if paired.by_whole_turns else ""
    seconds = paired.seconds_until_certain
    remedy = "a larger --budget or a quieter machine narrows the interval"
    if seconds is not None:
        remedy = (
            f"to be certain would take about --budget {seconds:.0f}s here, or a quieter machine"
        )
    return (
        f"inconclusive after {paired.seconds:.0f} s of measuring:"
        f" {measured}{_describe_interval(paired.verdict_bounds, revision)}; {remedy}"
    )


def _describe_whole_turns(paired: PairedResult, revision: str) -> str:
    """Return a change that whole turns show: `… 12.0% slower as a whole than main (…), …`.

    Usual steps that exclude so large a change say where it comes from; others are not certain yet.
    """
    whole_ratio = paired.whole_ratio or 1
    text = f"trains {abs(whole_ratio - 1):.1%} slower as a whole than {revision} ({_sizes(paired)})"
    if paired.low is not None and whole_ratio < paired.low:
        return (
            f"{text}, which its usual steps don't show:"
            " some steps take far longer, or time passes between them"
        )
    usual = _describe_interval((paired.low, paired.high), revision)
    return f"{text}; its usual steps alone are not certain: {usual}"


def _describe_change(paired: PairedResult, revision: str) -> str:
    """Return a change with its interval: `trains 5.0% slower than main (4.0% to 6.0%): …`."""
    change = abs((paired.ratio or 1) - 1)
    return (
        f"trains {change:.1%} {paired.verdict} than {revision} ({_sizes(paired)}):"
        f" {samples_per_second(paired.a_rate)} → {samples_per_second(paired.b_rate)} {paired.unit}"
    )


def _sizes(paired: PairedResult) -> str:
    """Return the interval of a change that is certain: `4.0% to 6.0%`.

    The word says the direction, so the sizes are positive; of a slowdown, the lower bound of the
    ratio is the larger size. The farther bound may be unknown.
    """
    low, high = paired.verdict_bounds
    near, far = (high, low) if paired.verdict == "slower" else (low, high)
    assert near is not None  # or the change would not be certain
    if far is None:
        return f"{abs(near - 1):.1%} or more"
    return f"{abs(near - 1):.1%} to {abs(far - 1):.1%}"


def _describe_interval(bounds: tuple[float | None, float | None], revision: str) -> str:
    """Return an interval in words: `between 3.8% slower and 1.0% faster than main`."""
    low, high = bounds
    if low is None or high is None:
        return "too few measurements for an interval"
    return f"between {_describe_bound(low)} and {_describe_bound(high)} than {revision}"


def _describe_bound(ratio: float) -> str:
    """Return a ratio of throughputs as a change: `3.8% slower`."""
    if ratio > 1 + LARGEST_EFFECT:
        return f"more than {LARGEST_EFFECT:,.0%} faster"
    direction = "slower" if ratio < 1 else "faster"
    return f"{abs(ratio - 1):.1%} {direction}"


def _numbers(paired: PairedResult) -> list[str]:
    """Return both throughputs, the change and its interval, as the table shows them."""
    if paired.ratio is None:
        return [MISSING] * 4
    low, high = paired.verdict_bounds
    interval = f"{_percent(low)} to {_percent(high)}"
    change = _percent(paired.verdict_ratio)
    rates = [samples_per_second(paired.a_rate), samples_per_second(paired.b_rate)]
    return [*rates, change, interval]


def _turns(paired: PairedResult) -> str:
    """Return what a verdict on whole turns ends with, nothing for any other."""
    return " (whole turns)" if paired.by_whole_turns else ""


def _percent(ratio: float | None) -> str:
    """Return a ratio of throughputs as a signed change; a bound that is not known is unbounded."""
    if ratio is None:
        return "unbounded"
    if ratio > 1 + LARGEST_EFFECT:
        return f">{LARGEST_EFFECT:+,.0%}"
    return f"{ratio - 1:+.1%}"


def as_json(outcome: GateOutcome, explanations: Mapping[str, Explanation] | None = None) -> str:
    """Return all of the outcome as JSON, with the explanations of its cells, by id.

    Numbers are not rounded: rates are in `unit`, ratios are throughput now over that before.
    `interval` is that of the ratio that the verdict rests on, and `summary` the sentence that people
    read.
    """
    cells: list[dict[str, Any]] = []
    for cell_outcome in outcome.cells:
        cell_json: dict[str, Any] = {
            "cell": cell_outcome.cell.id,
            "label": cell_outcome.cell.label,
            "failed": outcome.has_failed(cell_outcome),
            "summary": sentence(outcome, cell_outcome),
            "interval": cell_outcome.measured.verdict_bounds,
            "measured": asdict(cell_outcome.measured),
            "control": None,
            "accuracy": None,
            "explanation": None,
        }
        if cell_outcome.control is not None:
            cell_json["control"] = asdict(cell_outcome.control)
        if cell_outcome.accuracy is not None:
            cell_json["accuracy"] = asdict(cell_outcome.accuracy)
        explanation = (explanations or {}).get(cell_outcome.cell.id)
        if explanation is not None:
            cell_json["explanation"] = json_content(explanation)
        cells.append(cell_json)
    content = {
        "exit_code": outcome.exit_code,
        "commit": outcome.commit,
        "conditions": asdict(outcome.conditions),
        "options": asdict(outcome.options),
        "sweep_changes": [asdict(change) for change in outcome.sweep_changes],
        "package_changes": dict(outcome.package_changes),
        "cells": cells,
    }
    return json.dumps(content, indent=1, allow_nan=False)


def markdown(outcome: GateOutcome, name: str, reasons: Mapping[str, str] | None = None) -> str:
    """Return a comment for a pull request, also fit for GitHub's step summary.

    `name` is the sweep's; `reasons` say why cells are slower, or how to find out, by id. The comment
    has the heading, a bullet for each cell that does not pass, the reasons, the table, and the
    caption. Controls have no row; one that disagrees is in its cell's bullet.
    """
    heading = headline(outcome).removeprefix("is ")
    caption = _caption(outcome)
    caption = caption[0].upper() + caption[1:]
    bullets = [f"- {escape_markdown(line)}" for line in lines(outcome)]
    for cell_outcome in outcome.cells:
        reason = (reasons or {}).get(cell_outcome.cell.id)
        if reason is not None:
            bullets.append(f"- {escape_markdown(f'{cell_outcome.cell.label}: {reason}')}")
    columns = [column for column in COLUMNS if column != "measured"]
    table = Table(columns, NUMBER_COLUMNS)
    for cell_outcome in outcome.cells:
        paired = cell_outcome.measured
        verdict = _verdict(cell_outcome)
        if verdict == paired.verdict:
            verdict += _turns(paired)
        if outcome.has_failed(cell_outcome):
            verdict = f"**{verdict}**"
        label = escape_markdown(cell_outcome.cell.label)
        table.add_row(label, *_numbers(paired), verdict, BITS[paired.same_bits])
    packages = [f"{escape_markdown(line)}\n" for line in describe_packages(outcome)]
    text = [
        f"### Training speed of {escape_markdown(name)}: {escape_markdown(heading)}",
        "",
        *bullets,
        "",
        *markdown_lines(table, is_markup=True),
        "",
        *packages,
        escape_markdown(f"{caption}. {outcome.conditions.certificate}."),
    ]
    return "\n".join(text) + "\n"


def _verdict(cell_outcome: CellOutcome) -> str:
    """Return the verdict on a cell's accuracy if that fails, else on its speed, once the control is
    taken into account.
    """
    if cell_outcome.measured.failure:
        return "failed"
    accuracy = cell_outcome.accuracy
    if accuracy is not None and accuracy.outcome in ("worse", "failed"):
        return f"{accuracy.outcome} {accuracy.metric}".strip()
    if cell_outcome.control_disagrees:
        return "inconclusive"
    return cell_outcome.measured.verdict


def junit(outcome: GateOutcome, name: str) -> str:
    """Return JUnit XML with a test case for each cell.

    `name` is the sweep's, and the class of the test cases. Their time is that of measuring, in
    seconds. An inconclusive cell is an error, so that no tool takes it for a pass, and so is a sweep
    of which no cell was measured.
    """
    failure_count = sum(outcome.has_failed(cell) for cell in outcome.cells)
    error_count = sum(outcome.is_inconclusive(cell) for cell in outcome.cells)
    error_count += outcome.has_no_cells
    suite = Element(
        "testsuite",
        name="harness gate",
        tests=str(len(outcome.cells) + len(outcome.refused_changes) + outcome.has_no_cells),
        failures=str(failure_count + len(outcome.refused_changes)),
        errors=str(error_count),
    )
    properties = SubElement(suite, "properties")
    for key, value in asdict(outcome.conditions).items():
        SubElement(properties, "property", name=key, value=printable(value))
    sweep_case = {"classname": printable(name), "name": "sweep", "time": "0"}
    for change in outcome.refused_changes:
        case = SubElement(suite, "testcase", sweep_case)
        add_problem(case, "failure", change.kind, _describe_sweep_change(outcome, change))
    if outcome.has_no_cells:
        add_problem(SubElement(suite, "testcase", sweep_case), "error", "inconclusive", NO_CELLS)
    for cell_outcome in outcome.cells:
        _add_test_case(suite, outcome, cell_outcome, name)
    return tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _add_test_case(
    suite: Element, outcome: GateOutcome, cell_outcome: CellOutcome, name: str
) -> None:
    """Add the test case of a cell, with a problem inside it unless the cell passes."""
    case = SubElement(
        suite,
        "testcase",
        classname=printable(name),
        name=printable(cell_outcome.cell.label),
        time=f"{cell_outcome.measured.seconds:.3f}",
    )
    if outcome.has_failed(cell_outcome):
        tag = "failure"
    elif outcome.is_inconclusive(cell_outcome):
        tag = "error"
    else:
        return
    add_problem(case, tag, _verdict(cell_outcome), sentence(outcome, cell_outcome))
