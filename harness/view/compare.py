"""Shows `harness compare` and `harness baseline`: tables, the conclusion, and the same as JSON.

Verdicts come from `harness.analysis.compare`; this module decides nothing, it only says what they
mean. In all of it A is the reference and B what is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.analysis.compare import CellComparison, Match, setting_differences
from harness.analysis.questions import same_bits
from harness.analysis.result import CellResult
from harness.statistics.attribution import Attribution
from harness.statistics.estimate import FEWEST_SESSIONS
from harness.statistics.verdict import ALPHA, MetricVerdict
from harness.sweep.cell import axis_value
from harness.view.sweep import effects_table, verdict_badge
from harness.view.value import Kind, Styled, Value, effect_of, write
from harness.view.view import Table, View

# Groups have wider intervals: trials without a partner of the same seed, or that were not measured in turn.
UNITS = {"pairs": "", "trials": " unpaired", "sessions": " sessions"}


def comparison_view(comparison: CellComparison, a_name: str, b_names: Sequence[str]) -> View:
    """Return the table, what the sides differ in, and a last line that explains the exit code.

    With several sides B, a column says which of them a row is about.
    """
    sides: list[str | Styled] = [
        Styled("A ", "strong"),
        f"{a_name}   ",
        Styled("B ", "strong"),
        ", ".join(b_names),
    ]
    lines: list[Value] = [f"other {difference}" for difference in comparison.differences]
    for missing in comparison.missing:
        lines.append(Styled(f"missing {missing}", "open"))
    lines += comparison.notes
    lines.append(Styled(_legend(comparison), "quiet"))
    lines.append(Styled(_conclusion(comparison), "strong"))
    code = comparison.exit_code
    result = {
        "exit_code": code,
        "lines": list(map(write, lines)),
        "rows": comparison_rows(comparison),
    }
    table = _matches_table(comparison, names_sides=len(b_names) > 1)
    return View(
        result=result,
        heading=[sides],
        tables=[table],
        lines=lines,
        exit_code=code,
    )


def _matches_table(comparison: CellComparison, *, names_sides: bool) -> Table:
    """Return a table with a row for each metric of each match, and one for the same bits."""
    columns = ["cell", "side", "metric", "A", "B", "B against A", "pairs", "verdict"]
    table = Table(columns, dict.fromkeys(["A", "B", "pairs"], "number"))
    for match in comparison.matches:
        label = _match_label(match)
        side = match.b_side if names_sides else ""
        for verdict in match.verdicts:
            table.add_row(label, side, *_row(verdict))
            label = side = ""  # only in the first row of a match
        bits = None
        if match.pairs:
            bits = f"{same_bits(match.pairs)} of {len(match.pairs)}"
        # Nothing about it is uncertain, so that it has no verdict.
        table.add_row("", side, "same bits", "", "", bits, "", "")
    return table


def _match_label(match: Match) -> str:
    """Return the cell of B, with the settings of A's cell where they differ, as with `--by`."""
    a = match.a.cell
    b = match.b.cell
    if a.settings_id == b.settings_id:
        return b.label
    settings = []
    for name, (value, _) in setting_differences(a, b).items():
        settings.append(f"{name}={axis_value(value)}")
    return f"{b.label} against {' '.join(settings)}"


def _row(verdict: MetricVerdict) -> list[Value]:
    """Return the values of a row on one metric."""
    kind: Kind = "rate" if verdict.metric.relative else "metric"
    estimate = verdict.estimate
    return [
        verdict.metric.name,
        write(verdict.mean_a, kind),
        write(verdict.mean_b, kind),
        effect_of(verdict),
        f"{estimate.count}{UNITS[estimate.unit]}",
        verdict_badge(verdict),
    ]


def _legend(comparison: CellComparison) -> str:
    """Return what counts as a change; verdicts depend on options that are not in the table."""
    rules = comparison.rules
    return (
        f"a change: significant at {ALPHA:.0%} over all rows (Holm), and of at least"
        f" {rules.min_effect:.1%} of throughput or {rules.accuracy_margin:g} of the target metric; the"
        " same: shown to be less; intervals are those of the tests; speeds are geometric means"
    )


def _conclusion(comparison: CellComparison) -> str:
    """Return the meaning of the exit code (`CellComparison.exit_code`).

    Cells that are worse are named; where none is, it says what would settle what is open.
    """
    worse = []
    for match in comparison.matches:
        for verdict in match.verdicts:
            if verdict.outcome == "worse":
                worse.append(f"{match.b.cell.label}: {verdict.label}")
    if worse:
        return "; ".join(worse)
    if comparison.exit_code:
        return "inconclusive: more seeds, repeats or longer trials narrow intervals, or cells are missing"
    return "nothing is worse"


def comparison_rows(comparison: CellComparison) -> list[dict[str, Any]]:
    """Return each metric of each match: the means, the effect with its interval, and the verdict."""
    rows = []
    for match in comparison.matches:
        for verdict in match.verdicts:
            low, high = verdict.interval or (None, None)
            rows.append(
                {
                    "cell": match.b.cell.label,
                    "reference": match.a.cell.label,
                    "b_side": match.b_side,
                    "metric": verdict.metric.name,
                    "higher_is_better": verdict.metric.higher_is_better,
                    "relative": verdict.metric.relative,
                    "a": verdict.mean_a,
                    "b": verdict.mean_b,
                    "value": verdict.effect,
                    "low": low,
                    "high": high,
                    "confidence": verdict.confidence,
                    "count": verdict.estimate.count,
                    "paired": verdict.estimate.paired,
                    "verdict": verdict.label,
                    "outcome": verdict.outcome,
                    "p_change": verdict.p_change,
                    "p_same": verdict.p_same,
                    "min_detectable_effect": verdict.min_detectable_effect,
                    "same_bits": same_bits(match.pairs),
                    "pairs": len(match.pairs),
                }
            )
    return rows


def saved_view(saved: Mapping[Path, CellResult]) -> View:
    """Return a line for each baseline that was written."""
    lines: list[Value] = []
    for path, result in saved.items():
        count = len(result.sessions)
        needed = f"{count} of {FEWEST_SESSIONS} sessions that a verdict on speed takes"
        lines.append(f"saved {path}  {result.cell.label}, {needed}")
    return View(lines=lines)


def effects_view(attributions: Mapping[str, Attribution]) -> View:
    """Return a table for each workload: a line for every level of an axis, then for every two.

    `attributions` are by the workload's label.
    """
    tables = []
    lines: list[Value] = []
    for label, attribution in attributions.items():
        tables.append(effects_table(label, attribution))
        unknown = ", ".join(map(" and ".join, attribution.unknown))
        if unknown:
            lines.append(f"{label}: can't be separated from the other axes: {unknown}")
    legend = (
        "of one axis: averaged over the values of the others; of two: how much more the first"
        f" contributes with the second than without it; certain: at {ALPHA:.0%} over all lines (Holm)"
    )
    lines.append(Styled(legend, "quiet"))
    return View(result=attributions, tables=tables, lines=lines)
