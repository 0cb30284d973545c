"""Shows `harness trend`: a table, JSON, Markdown for a summary, and JUnit XML, all made from one `Trend`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from harness.analysis.trend import SIZE_CONFIDENCE, Trend, TrendChange, TrendPoint, TrendSeries
from harness.core.text import counted
from harness.render.ci import add_problem, escape_markdown, printable
from harness.render.console import TerminalConsole, show_table
from harness.render.format import MISSING, SHORT_COMMIT, samples_per_second
from harness.render.table import Look, Styled, Table, markdown_lines
from harness.statistics.interval import exp

COLUMNS = [
    "cell",
    "hardware",
    "nights",
    "now",
    "change",
    "interval",
    "since",
    "commits",
    "sort",
    "seen",
]
NUMBER_COLUMNS = ["nights", "now", "change", "interval"]


def show_trend(trend: Trend) -> None:
    """Print the table, what it rests on, and the last line, which says what is new."""
    console = TerminalConsole()
    show_table(console, trend_table(trend))
    console.print_text(f"\n{caption(trend)}", "quiet")
    for line in [*version_lines(trend), *trend.notes]:
        console.print_text(line)
    for line in lines(trend):
        console.print_text(line)
    console.print_text(headline(trend))


def trend_table(trend: Trend) -> Table:
    """Return the table: a row for each change, or one for a series without any."""
    table = Table(COLUMNS, NUMBER_COLUMNS)
    for series in trend.series:
        first = [label(series), series.hardware, str(len(series.points)), now(trend, series)]
        for row in _rows(trend, series):
            table.add_row(*first, *row)
            first = [""] * len(first)
    return table


def _rows(trend: Trend, series: TrendSeries) -> Iterator[list[str | Styled]]:
    """Yield the fields of a series from `change` on, a row for each that it has."""
    if series.previous is not None:
        yield [
            MISSING,
            MISSING,
            day(series.points[0]),
            _commit(series.points[0]),
            "hardware",
            MISSING,
        ]
    for change in series.changes:
        look: Look = "plain"
        if change.is_new:
            look = "worse" if change.is_slower else "better"
        yield [
            Styled(f"{change.ratio - 1:+.1%}", look),
            interval(change),
            day(change.first),
            commits(change),
            sort(change),
            Styled(f"{day(change.seen)}, new", look) if change.is_new else day(change.seen),
        ]
    if series.previous is None and not series.changes:
        text = "none"
        if len(series.points) < trend.nights_needed:
            text = f"too few nights: about {trend.nights_needed} needed"
        yield [text, MISSING, MISSING, MISSING, MISSING, MISSING]


def label(series: TrendSeries) -> str:
    """Return the name of a series."""
    return f"{series.cell.label} (control)" if series.is_control else series.cell.label


def now(trend: Trend, series: TrendSeries) -> str:
    """Return what the last night measured: samples/s, or how many times the control's."""
    point = series.points[-1]
    if trend.control and not series.is_control:
        return f"{exp(point.value):.3f}×"
    assert point.result.throughput is not None
    return samples_per_second(point.result.throughput.mean)


def interval(change: TrendChange) -> str:
    """Return the interval of a change: `-2.1% to -0.9%`."""
    low, high = change.bounds
    return f"{low - 1:+.1%} to {high - 1:+.1%}"


def day(point: TrendPoint) -> str:
    """Return the date on which a point was measured, in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(point.started))


def _commit(point: TrendPoint) -> str:
    """Return the abbreviated commit of a point."""
    return (point.commit or MISSING)[:SHORT_COMMIT]


def commits(change: TrendChange) -> str:
    """Return between which commits a change began: `1a2b3c4..5d6e7f8`, as git writes it."""
    return f"{_commit(change.before)}..{_commit(change.after)}"


def sort(change: TrendChange) -> str:
    """Return what changed at the same time: `code`, `code or versions`, or `noise`."""
    return " or ".join(change.causes) or "noise"


def sentence(series: TrendSeries, change: TrendChange) -> str:
    """Return a change in words: `mlp …: 4.1% slower (-4.4% to -3.8%) since 1a2b3c4..5d6e7f8 (…)`."""
    direction = "slower" if change.is_slower else "faster"
    return printable(
        f"{label(series)}: {abs(change.ratio - 1):.1%} {direction} ({interval(change)})"
        f" since {commits(change)} of {day(change.first)} on {series.hardware}: {sort(change)}"
    )


def lines(trend: Trend) -> list[str]:
    """Return a sentence for each new change, the slowdowns with a cause first."""
    slowdowns = [sentence(*found) for found in trend.new_slowdowns]
    new = [sentence(*found) for found in trend.new_changes]
    return [*slowdowns, *(text for text in new if text not in slowdowns)]


def version_lines(trend: Trend) -> list[str]:
    """Return which versions changed with the changes that are sorted so, each line once."""
    texts = []
    for series in trend.series:
        for change in series.changes:
            texts += [f"{day(change.first)}: {text}" for text in change.version_changes]
    return list(dict.fromkeys(map(printable, texts)))


def headline(trend: Trend) -> str:
    """Return what the last night has brought: `The trend fails: 2 new slowdowns with the last night.`"""
    count = len(trend.new_slowdowns)
    if count:
        return f"The trend fails: {counted(count, 'new slowdown')} with the last night."
    known = sum(len(series.changes) for series in trend.series)
    return (
        f"The trend passes: no new slowdown with the last night; {counted(known, 'change')} in all."
    )


def caption(trend: Trend) -> str:
    """Return what the numbers are, and how often they are wrong."""
    units = {series.points[-1].result.throughput_unit for series in trend.series}
    number = f"throughput in {' and '.join(sorted(units))}"
    if trend.control:
        number = f"throughput over that of {trend.control}, measured in the same night"
    return (
        f"{number}, of {counted(trend.nights, 'night')}; changes of at least {trend.min_effect:.1%} that"
        f" two detectors agree on, with {SIZE_CONFIDENCE:.0%} intervals; at most one false one a year"
        " over all cells, looking every night"
    )


def as_json(trend: Trend) -> str:
    """Return all of the trend as JSON, with numbers that are not rounded."""
    series = []
    for member in trend.series:
        points = []
        for point in member.points:
            assert point.result.throughput is not None
            points.append(
                {
                    "started": point.started,
                    "commit": point.commit,
                    "throughput": point.result.throughput.mean,
                    "trials": len(point.result.trials),
                    "value": point.value,
                }
            )
        series.append(
            {
                "cell": member.cell.id,
                "label": member.cell.label,
                "hardware": member.hardware,
                "is_control": member.is_control,
                "points": points,
                "changes": [_change_fields(member, change) for change in member.changes],
            }
        )
    content = {
        "exit_code": trend.exit_code,
        "sweep": trend.name,
        "control": trend.control or None,
        "nights": trend.nights,
        "min_effect": trend.min_effect,
        "threshold": trend.threshold,
        "notes": list(trend.notes),
        "series": series,
    }
    return json.dumps(content, indent=1, allow_nan=False)


def _change_fields(series: TrendSeries, change: TrendChange) -> dict[str, Any]:
    """Return a change as JSON has it; `interval` is that of `ratio`."""
    return {
        "ratio": change.ratio,
        "interval": change.bounds,
        "is_new": change.is_new,
        "sort": sort(change),
        "causes": list(change.causes),
        "version_changes": list(change.version_changes),
        "started": change.first.started,
        "good": change.before.commit,
        "bad": change.after.commit,
        "seen": change.seen.started,
        "summary": sentence(series, change),
    }


def markdown(trend: Trend) -> str:
    """Return the trend for GitHub's step summary or a comment."""
    table = Table(COLUMNS, NUMBER_COLUMNS)
    for row in trend_table(trend).rows:
        table.add_row(*(escape_markdown(str(content)) for content in row))
    bullets = [f"- {escape_markdown(line)}" for line in lines(trend)]
    notes = [f"- {escape_markdown(line)}" for line in [*version_lines(trend), *trend.notes]]
    text = [
        f"### Trend of {escape_markdown(trend.name)}: {escape_markdown(headline(trend))}",
        "",
        *bullets,
        "",
        *markdown_lines(table, is_markup=True),
        "",
        *notes,
        "",
        escape_markdown(f"{caption(trend)}."),
    ]
    return "\n".join(text) + "\n"


def junit(trend: Trend) -> str:
    """Return JUnit XML with a test case for each series; one with a new slowdown fails."""
    failing = {}
    for series, change in trend.new_slowdowns:
        failing[series.cell.id, series.hardware] = sentence(series, change)
    suite = Element(
        "testsuite",
        name="harness trend",
        tests=str(len(trend.series)),
        failures=str(len(failing)),
        errors="0",
    )
    for series in trend.series:
        name = printable(f"{label(series)} on {series.hardware}")
        case = SubElement(suite, "testcase", classname=printable(trend.name), name=name, time="0")
        text = failing.get((series.cell.id, series.hardware))
        if text is not None:
            add_problem(case, "failure", "slower", text)
    return tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
