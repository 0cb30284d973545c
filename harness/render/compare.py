"""Shows `harness compare` and `harness baseline`: tables, the conclusion, and the same as JSON.

Verdicts come from `harness.analysis.compare`; this module decides nothing, it only says what they
mean. In all of it A is the reference and B what is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.markup import escape

from harness.analysis.baseline import Saved
from harness.analysis.compare import CellComparison, Match, MetricRow, setting_differences
from harness.analysis.convergence import STEPS_MARGIN
from harness.analysis.result import CellResult
from harness.core.validation import finite
from harness.render import format as fmt
from harness.render.cells import effects_table
from harness.render.console import TerminalConsole, print_json, show_table, styled
from harness.render.table import Content, Table
from harness.spec.cell import axis_value
from harness.statistics.attribution import Attribution
from harness.statistics.estimate import FEWEST_SESSIONS, POWER
from harness.statistics.verdict import ALPHA

COLUMNS = ["metric", "A", "B", "B against A", "interval", "pairs", "verdict", "detectable"]
NUMBERS = ["A", "B", "B against A", "interval", "pairs", "detectable"]  # aligned to the right


def show_comparison(comparison: CellComparison, a_name: str, b_names: Sequence[str]) -> None:
    """Print the table, what the sides differ in, and a last line that explains the exit code.

    A match goes by the cell of B, with the settings of A's cell where they differ. With several sides
    B, a column says which of them a row is about.
    """
    console = TerminalConsole()
    heading = f"[bold]A[/] {escape(a_name)}   [bold]B[/] {escape(', '.join(b_names))}"
    console.print_markup(heading)
    table = Table(["cell", *COLUMNS], NUMBERS)
    if len(b_names) > 1:
        table = Table(["cell", "B", *COLUMNS], NUMBERS)
    for match in comparison.matches:
        label = match.b.cell.label
        if match.a.cell.settings_id != match.b.cell.settings_id:
            # The question is about an axis, as with `--by`, or across one.
            differences = setting_differences(match.a.cell, match.b.cell)
            settings = [f"{name}={axis_value(value)}" for name, (value, _) in differences.items()]
            label += f" against {' '.join(settings)}"
        for row in _match_rows(match):
            texts = row if len(b_names) > 1 else row[1:]
            table.add_row(label, *texts)
            label = ""  # only in the first row of a match
    show_table(console, table)
    console.print_prose("\n" + "\n".join(_remarks(comparison)))
    console.print_markup(f"[bold]{escape(_conclusion(comparison))}[/]")


def _match_rows(match: Match) -> list[list[Content]]:
    """Return the texts of a match's rows: the side of B, then one for each of `COLUMNS`.

    Costs have no verdict of their own. The last row says how many pairs of trials ended with the
    same parameters, bit for bit. It has no verdict, as nothing about it is uncertain.
    """
    rows: list[list[Content]] = []
    for row in match.rows:
        verdict = row.verdict
        rows.append(
            [
                match.b_side,
                row.metric.name,
                *fmt.mean_values(row),
                fmt.effect(verdict),
                fmt.effect_interval(verdict),
                fmt.pair_count(verdict),
                fmt.verdict_badge(row),
                fmt.detectable_effect(verdict),
            ]
        )
    bits = fmt.MISSING
    if match.pairs:
        bits = f"{match.same_bits} of {match.pairs}"
    rows.append(["", "same bits", "", "", bits, "", "", "", ""])
    return rows


def _remarks(comparison: CellComparison) -> list[str]:
    """Return what the sides differ in, what is missing, notes, and how to read the table.

    Each is a line in Rich's markup. Names of cells and values of conditions come from users and are
    escaped.
    """
    remarks = []
    for difference in comparison.differences:
        remarks.append(f"other {escape(difference)}")
    for missing in comparison.missing:
        remarks.append(f"[yellow]missing[/] {escape(missing)}")
    remarks += map(escape, comparison.notes)
    if any(row.verdict.interval != fmt.shown_effect_bounds(row.verdict) for row in comparison.rows):
        remarks.append(f"2 pairs: {fmt.TOO_FEW}")
    remarks.append(f"[dim]{_legend(comparison)}[/]")
    return remarks


def _legend(comparison: CellComparison) -> str:
    """Return what counts as a change, and how a change is detected.

    It stands below every table, as verdicts depend on options that are not in it.
    """
    rules = comparison.rules
    steps = ""
    if rules.goal is not None:
        steps = f" or {fmt.share(STEPS_MARGIN)} of the steps to reach {rules.goal:g}"
    return (
        f"a change: significant at {rules.alpha:.0%}, no false alarm among them all (Holm), and of at"
        f" least {fmt.share(rules.min_effect)} of throughput or {rules.accuracy_margin:g} of the"
        f" target metric{steps}; the same: shown to be less;"
        f" {fmt.interval_legend(rules.alpha)};"
        f" detectable: detected {POWER:.0%} of the time; speeds are geometric means"
    )


def _conclusion(comparison: CellComparison) -> str:
    """Return the meaning of the exit code (`CellComparison.exit_code`).

    Cells that are worse are named; where none is, it says what would settle what is open.
    """
    worse, outcomes = [], set()
    for row in comparison.rows:
        outcomes.add(row.verdict.outcome)
        if row.verdict.outcome == "worse":
            worse.append(f"{row.b.cell.label}: {row.verdict.label}")
    if worse:
        return "; ".join(worse)
    if "inconclusive" in outcomes:
        return "inconclusive: more seeds or repeats, or longer trials, narrow the intervals"
    if comparison.missing:
        return "inconclusive: something is missing, as listed above"
    return "nothing is worse"


def print_comparison_json(comparison: CellComparison, a_name: str, b_names: Sequence[str]) -> None:
    """Print all that the table shows and what it is computed from, as JSON for other programs.

    Numbers are not rounded. JSON has no infinity: a bound or an effect without a limit is null.
    `same_bits` of a cell's `pairs` pairs of trials ended with the same parameters.
    """
    cells: list[dict[str, Any]] = []
    for match in comparison.matches:
        cells.append(
            {
                "b_side": match.b_side,
                "a": _json_cell(match.a),
                "b": _json_cell(match.b),
                "same_bits": match.same_bits,
                "pairs": match.pairs,
                "metrics": list(map(row_fields, match.rows)),
            }
        )
    content = {
        "a": a_name,
        "b": list(b_names),
        "exit_code": comparison.exit_code,
        "rules": asdict(comparison.rules),
        "differences": comparison.differences,
        "missing": comparison.missing,
        "notes": comparison.notes,
        "cells": cells,
    }
    print_json(content)


def _json_cell(result: CellResult) -> dict[str, Any]:
    """Return a cell, its hardware and how many trials it has."""
    return {
        "cell": result.cell.id,
        "label": result.cell.label,
        "hardware": result.hardware,
        "trials": len(result.trials),
        "left_out": result.left_out,
    }


def row_fields(row: MetricRow) -> dict[str, Any]:
    """Return one metric: the means, the effect with its interval, and the verdict with p-values."""
    verdict = row.verdict
    low, high = verdict.interval or (None, None)
    return {
        "metric": row.metric.name,
        "higher_is_better": row.metric.higher_is_better,
        "relative": row.metric.relative,
        "a": row.verdict.mean_a,
        "b": row.verdict.mean_b,
        "value": verdict.effect,
        "low": finite(low),
        "high": finite(high),
        "confidence": verdict.confidence,
        "count": verdict.estimate.count,
        "paired": verdict.estimate.paired,
        "verdict": verdict.label,
        "outcome": verdict.outcome,
        "p_change": verdict.p_change,
        "p_same": verdict.p_same,
        "min_detectable_effect": finite(verdict.min_detectable_effect),
    }


def show_saved(saved: Sequence[Saved]) -> None:
    """Print a line for each baseline that was written."""
    console = TerminalConsole()
    for baseline in saved:
        action = "replaced" if baseline.replaced else "saved"
        path = escape(str(baseline.path))
        label = escape(baseline.result.cell.label)
        warning = ""
        count = len(baseline.result.sessions)
        if count < FEWEST_SESSIONS:
            warning = (
                f" [yellow]({count} of {FEWEST_SESSIONS} sessions that a verdict on speed takes)[/]"
            )
        console.print_markup(f"{action} {path}  {label}{warning}")


LEGEND = (
    "of one axis: averaged over the values of the others; of two: how much more the first"
    f" contributes with the second than without it; certain: at {ALPHA:.0%} over all lines (Holm),"
    " where the interval, corrected likewise, leaves out 1"
)


def show_effects(attributions: Mapping[str, Attribution], *, as_json: bool) -> None:
    """Print a table for each workload: a line for every level of an axis, then for every two.

    `attributions` are by the workload's label. With `as_json` they are printed as JSON instead.
    """
    if as_json:
        print_json(attributions)
        return
    console = TerminalConsole()
    for label, attribution in attributions.items():
        show_table(console, effects_table(label, attribution))
        for term in attribution.unknown:
            console.print_text(f"{' and '.join(term)}: can't be separated from the other axes")
    console.print_prose(styled(LEGEND, "quiet"))
