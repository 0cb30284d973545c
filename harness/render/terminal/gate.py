"""`harness gate` as its user sees it: a table, JSON, a summary in Markdown for a pull request, and JUnit."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from harness.gate.against import CellOutcome, GateOutcome
from harness.gate.paired import PairedResult
from harness.render.terminal.table import make_table, show
from harness.statistics.verdict import ALPHA

STYLES = {"slower": "bold red", "failed": "bold red", "faster": "green", "inconclusive": "yellow"}
HEADINGS = {0: "passes", 1: "fails", 3: "can't tell"}


def show_outcome(found: GateOutcome) -> None:
    """The table, how far such gates can be trusted here, and a last line that says what the exit code says."""
    console = Console(highlight=False)
    columns = ["cell", "before", "now", "change", "interval", "verdict", "bits", "measured"]
    table = make_table(columns, columns[1:5] + columns[7:])
    for one in found.cells:
        for label, paired in [
            (one.cell.label, one.measured),
            *([("  control", one.control)] if one.control else []),
        ]:
            word = "failed" if paired.failure else paired.verdict
            table.add_row(
                label,
                *_numbers(paired),
                Text(word, style=STYLES.get(word, "")),
                _bits(paired),
                _cost(paired),
            )
    show(console, table)
    console.print(f"\n[dim]{escape(_caption(found))}[/]", soft_wrap=True)
    console.print(f"[dim]{escape(found.conditions.certificate)}[/]", soft_wrap=True)
    for line in lines(found):
        console.print(escape(line), soft_wrap=True)
    console.print(f"[bold]The gate {escape(headline(found))}.[/]", soft_wrap=True)


def _caption(found: GateOutcome) -> str:
    return (
        f"samples/s of {_revision(found)} and of the working tree, in turn on {found.conditions.hardware} with torch"
        f" {found.conditions.torch}; what matters: {found.options.min_effect:.1%}; intervals are {1 - ALPHA:.0%} over all"
        " cells, however often one looks"
    )


def _revision(found: GateOutcome) -> str:
    """`main (f8fea52)`."""
    return (
        found.commit[:7]
        if _name(found) == found.commit[:7]
        else f"{_name(found)} ({found.commit[:7]})"
    )


def _name(found: GateOutcome) -> str:
    """The revision as it was asked for, but a commit's id shortened."""
    return (
        found.commit[:7]
        if found.commit.startswith(found.options.revision)
        else found.options.revision
    )


def headline(found: GateOutcome) -> str:
    """What the exit code says."""
    failed = sum(found.has_failed(one) for one in found.cells)
    unclear = sum(found.is_inconclusive(one) for one in found.cells)
    word, count = HEADINGS[found.exit_code], f"of {len(found.cells)} cells"
    if failed:
        return f"{word}: {failed} {count}" + (
            f"; of {unclear} more it can't be told" if unclear else ""
        )
    return (
        f"{word}: {unclear} {count}"
        if unclear
        else f"{word}: nothing is slower than {_name(found)}"
    )


def lines(found: GateOutcome) -> list[str]:
    """In words, a line each: what failed, then what can't be told."""
    told = [sentence(found, one) for one in found.cells if found.has_failed(one)]
    return told + [sentence(found, one) for one in found.cells if found.is_inconclusive(one)]


def sentence(found: GateOutcome, one: CellOutcome) -> str:
    """What became of a cell, for somebody who is tired."""
    paired, against = one.measured, _name(found)
    if paired.failure:
        return f"{one.cell.label}: failed: {paired.failure}"
    if one.control and one.control_disagrees:
        came = (
            f"failed: {one.control.failure}"
            if one.control.failure
            else f"came out {one.control.verdict}"
        )
        said = f"can't be told: {against} measured against itself {came}"
    elif paired.verdict in ("slower", "faster"):
        low, high = sorted(abs(bound - 1) for bound in (paired.low or 1, paired.high or 1))
        said = (
            f"trains {abs((paired.ratio or 1) - 1):.1%} {paired.verdict} than {against}: {paired.a_rate:,.0f} →"
            f" {paired.b_rate:,.0f} samples/s; certainly by {low:.1%}, at most by {high:.1%}"
        )
    elif paired.verdict == "same":
        said = f"trains as fast as {against}, to within {found.options.min_effect:.1%}"
    else:
        said = (
            f"can't be told after {paired.seconds:.0f} s of measuring: {_between(paired, against)};"
            " more time (--budget) or a quieter machine would tell"
        )
    if found.options.compare_bits and paired.same_bits is False:
        said += f"; it computes other losses than {against}"
    return f"{one.cell.label}: {said}"


def _between(paired: PairedResult, against: str) -> str:
    if paired.low is None or paired.high is None:
        return "too little for any bound"
    low, high = (
        f"{abs(bound - 1):.1%} {'slower' if bound < 1 else 'faster'}"
        for bound in (paired.low, paired.high)
    )
    return f"between {low} and {high} than {against}"


def _percent(bound: float | None) -> str:
    return "anything" if bound is None else f"{bound - 1:+.1%}"


def _numbers(paired: PairedResult) -> list[str]:
    if paired.ratio is None:
        return ["–"] * 4
    interval = f"{_percent(paired.low)} to {_percent(paired.high)}"
    return [f"{paired.a_rate:,.0f}", f"{paired.b_rate:,.0f}", _percent(paired.ratio), interval]


def _bits(paired: PairedResult) -> str:
    return {True: "same", False: "other", None: "–"}[paired.same_bits]


def _cost(paired: PairedResult) -> str:
    return f"{paired.seconds:.1f} s, {paired.pairs} pairs" if paired.pairs else "–"


def as_json(found: GateOutcome) -> str:
    def plain(paired: PairedResult | None) -> dict[str, Any] | None:
        return None if paired is None else asdict(paired)

    content = {
        "exit_code": found.exit_code,
        "commit": found.commit,
        "conditions": asdict(found.conditions),
        "options": asdict(found.options),
        "cells": [
            {
                "cell": one.cell.id,
                "label": one.cell.label,
                "failed": found.has_failed(one),
                "summary": sentence(found, one),
                "measured": plain(one.measured),
                "control": plain(one.control),
            }
            for one in found.cells
        ],
    }
    return json.dumps(content, indent=1, allow_nan=False)


def markdown(found: GateOutcome, name: str) -> str:
    """A comment for a pull request, or GitHub's step summary."""
    rows = [
        f"| {_escape(one.cell.label)} | {' | '.join(_numbers(one.measured))} | "
        f"{'**' + _word(one) + '**' if found.has_failed(one) else _word(one)} | {_bits(one.measured)} |"
        for one in found.cells
    ]
    head = [
        f"### Training speed of `{name}`: {headline(found)}",
        "",
        *(f"- {_escape(line)}" for line in lines(found)),
        "",
        "| cell | before | now | change | interval | verdict | bits |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    told = f"{_caption(found)[0].upper()}{_caption(found)[1:]}. {found.conditions.certificate}."
    return "\n".join([*head, *rows, "", _escape(told)]) + "\n"


def _escape(text: str) -> str:
    """What a rank said is not markup."""
    return re.sub(r"([\\`*_\[\]<>|~])", r"\\\1", text)


def _word(one: CellOutcome) -> str:
    return (
        "failed"
        if one.measured.failure
        else "inconclusive"
        if one.control_disagrees
        else one.measured.verdict
    )


def junit(found: GateOutcome, name: str) -> str:
    """One test case a cell; what can't be told is an error, so that nobody takes it for a pass."""
    failures = sum(found.has_failed(one) for one in found.cells)
    errors = sum(found.is_inconclusive(one) for one in found.cells)
    suite = Element(
        "testsuite",
        name="harness gate",
        tests=str(len(found.cells)),
        failures=str(failures),
        errors=str(errors),
    )
    properties = SubElement(suite, "properties")
    for key, value in asdict(found.conditions).items():
        SubElement(properties, "property", name=key, value=value)
    for one in found.cells:
        case = SubElement(
            suite,
            "testcase",
            classname=name,
            name=one.cell.label,
            time=f"{one.measured.seconds:.3f}",
        )
        kind = "failure" if found.has_failed(one) else "error" if found.is_inconclusive(one) else ""
        if kind:  # the words twice: GitLab shows the text, others the message
            SubElement(case, kind, message=sentence(found, one), type=_word(one)).text = sentence(
                found, one
            )
    return tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
