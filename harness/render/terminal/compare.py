"""`harness compare` and `harness baseline` as their user sees them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from harness.analysis.baseline import Saved
from harness.analysis.compare import Comparison, Match, Row, identity_settings
from harness.analysis.result import CellResult
from harness.render.terminal.table import make_table, show
from harness.statistics.estimate import POWER
from harness.statistics.trials import mean_of_trials
from harness.statistics.verdict import Outcome

STYLES: dict[Outcome, str] = {
    "better": "green",
    "worse": "bold red",
    "same": "",
    "inconclusive": "yellow",
}
COLUMNS = [
    "metric",
    "A",
    "B",
    "B against A",
    "95% interval",
    "pairs",
    "verdict",
    "detectable",
]


def show_comparison(found: Comparison, a_name: str, b_names: Sequence[str]) -> None:
    """The table, what the sides differ in, and a last line that says what the exit code says."""
    console = Console(highlight=False)
    console.print(
        f"[bold]A[/] {escape(a_name)}   [bold]B[/] {escape(', '.join(b_names))}", soft_wrap=True
    )
    several = len(b_names) > 1
    table = make_table(["cell", *(["B"] if several else []), *COLUMNS], COLUMNS[1:6] + COLUMNS[7:])
    for one in found.matches:
        label = _label(one)
        for row in found.rows_of(one):
            table.add_row(label, *([one.b_side] if several else []), *_row(row))
            label = ""
        bits = f"{one.same_bits} of {one.pairs}" if one.pairs else "–"
        table.add_row(label, *([""] if several else []), "same bits", "", "", bits, "", "", "", "")
    show(console, table)
    told = [f"other {difference}" for difference in found.differences]
    told += [f"[yellow]missing[/] {escape(missing)}" for missing in found.missing] + [
        escape(n) for n in found.notes
    ]
    console.print("\n" + "\n".join([*told, *_legend(found)]), soft_wrap=True)
    console.print(f"[bold]{escape(_conclusion(found))}[/]", soft_wrap=True)


def _conclusion(found: Comparison) -> str:
    """What the exit code says, in words."""
    worse = [
        f"{row.b.cell.label}: {row.verdict.label}"
        for row in found.rows
        if row.verdict.outcome == "worse"
    ]
    if worse:
        return "; ".join(worse)
    if any(row.verdict.outcome == "inconclusive" for row in found.rows):
        return "inconclusive: more seeds or repeats, or longer trials, narrow the intervals"
    return (
        "inconclusive: something is missing, as said above" if found.missing else "nothing is worse"
    )


def _label(one: Match) -> str:
    if one.a.cell.id == one.b.cell.id:
        return one.b.cell.label
    mine, other = identity_settings(one.b.cell), identity_settings(one.a.cell)
    differing = [f"{name}={other[name]}" for name in other if other[name] != mine[name]]
    return f"{one.b.cell.label} against {' '.join(differing)}"


def _row(row: Row) -> list[str | Text]:
    verdict, metric = row.verdict, row.verdict.question.metric
    value = metric.back_transform(verdict.question.estimate.value)
    known = verdict.question.estimate.standard_error is not None
    min_detectable_effect = (
        "–"
        if verdict.min_detectable_effect is None
        else _size(verdict.min_detectable_effect, metric.relative)
    )
    numbers = (f"{row.mean_a:,.0f}", f"{row.mean_b:,.0f}") if metric.relative else (
        f"{row.mean_a:.4f}", f"{row.mean_b:.4f}"
    )  # fmt: skip
    return [
        metric.name,
        *numbers,
        f"{value:.3f}×" if metric.relative else f"{value:+.4f}",
        _interval(verdict.low, verdict.high, metric.relative) if known else "–",
        f"{verdict.question.estimate.count}{'' if verdict.question.estimate.paired else ' unpaired'}",
        Text(verdict.label, style=STYLES[verdict.outcome]),
        min_detectable_effect,
    ]


def _interval(low: float, high: float, relative: bool) -> str:
    return f"{low:.3f} to {high:.3f}" if relative else f"{low:+.4f} to {high:+.4f}"


def _size(value: float, relative: bool) -> str:
    if relative:
        return f"{value:.1%}" if value < 10 else ">1,000%"
    return f"{value:.4f}"


def _legend(found: Comparison) -> list[str]:
    rules = found.rules
    family = {
        "holm": "no false alarm among them all (Holm)",
        "bh": "few false ones among all (Benjamini-Hochberg)",
    }
    return [
        f"[dim]a change: significant at {rules.alpha:.0%}, {family[rules.correction]}, and of at least"
        f" {rules.min_effect:.1%} of throughput or {rules.accuracy_margin:g} of the target metric;"
        f" the same: shown to be less; detectable: found {POWER:.0%} of the time; speeds are geometric means[/]"
    ]


def print_json(found: Comparison, a_name: str, b_names: Sequence[str]) -> None:
    """All that the table says, and what it is computed from; infinite bounds are null."""
    content = {
        "a": a_name,
        "b": list(b_names),
        "exit_code": found.exit_code,
        "rules": asdict(found.rules),
        "differences": found.differences,
        "missing": found.missing,
        "notes": found.notes,
        "cells": [
            {
                "b_side": one.b_side,
                "a": _described(one.a),
                "b": _described(one.b),
                "same_bits": one.same_bits,
                "pairs": one.pairs,
                "metrics": [_json_row(row) for row in found.rows_of(one)],
            }
            for one in found.matches
        ],
    }
    print(json.dumps(content, indent=1, allow_nan=False))


def _described(result: CellResult) -> dict[str, Any]:
    logs = [
        (math.log(one.throughput), one.relative_error) for one in result.trials if one.throughput
    ]
    spread = (
        mean_of_trials([value for value, _ in logs], [error for _, error in logs]) if logs else None
    )
    return {
        "cell": result.cell.id,
        "label": result.cell.label,
        "conditions": result.conditions,
        "trials": len(result.trials),
        "left_out": result.left_out,
        "deviation_within_trials": spread.within if spread else None,
        "deviation_between_trials": spread.between if spread else None,
    }


def _json_row(row: Row) -> dict[str, Any]:
    verdict, estimate = row.verdict, row.verdict.question.estimate
    return {
        "metric": verdict.question.metric.name,
        "higher_is_better": verdict.question.metric.higher_is_better,
        "relative": verdict.question.metric.relative,
        "a": row.mean_a,
        "b": row.mean_b,
        "value": verdict.question.metric.back_transform(estimate.value),
        "low": _finite(verdict.low if estimate.standard_error is not None else math.inf),
        "high": _finite(verdict.high if estimate.standard_error is not None else math.inf),
        "count": estimate.count,
        "paired": estimate.paired,
        "verdict": verdict.label,
        "outcome": verdict.outcome,
        "p_change": verdict.p_change,
        "p_same": verdict.p_same,
        "min_detectable_effect": None
        if verdict.min_detectable_effect is None
        else _finite(verdict.min_detectable_effect),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def show_saved(saved: Sequence[Saved]) -> None:
    console = Console(highlight=False)
    for one in saved:
        what = "replaced" if one.replaced else "saved"
        few = (
            " [yellow](one trial: nothing can be told faster or slower from it)[/]"
            if len(one.result.trials) < 2
            else ""
        )
        console.print(
            f"{what} {escape(str(one.path))}  {escape(one.result.cell.label)}{few}", soft_wrap=True
        )


def show_baselines(found: Sequence[tuple[Path, CellResult]]) -> None:
    """One row a baseline."""
    columns = ["hardware", "cell", "label", "samples/s", "trials", "code"]
    table = make_table(columns, ["samples/s", "trials"])
    for path, result in found:
        speeds = [one.throughput for one in result.trials if one.throughput]
        speed = f"{math.exp(sum(map(math.log, speeds)) / len(speeds)):,.0f}" if speeds else "–"
        code = " and ".join(result.conditions["code"])
        table.add_row(
            path.parent.name, path.stem, result.cell.label, speed, str(len(result.trials)), code
        )
    show(Console(highlight=False), table)


def show_baseline(path: Path, result: CellResult) -> None:
    """Its conditions, and a row for each trial."""
    console = Console(highlight=False)
    console.print(f"[bold]{escape(result.cell.label)}[/]  {escape(str(path))}", soft_wrap=True)
    for kind, found in result.conditions.items():
        console.print(f"{kind:9}{escape(' and '.join(found))}", soft_wrap=True)
    metric = result.target.name if result.target else "metric"
    columns = ["seed", "repeat", "samples/s", "own error", metric, "parameters"]
    table = make_table(columns, columns[:5])
    for one in result.trials:
        table.add_row(
            str(one.seed),
            str(one.repeat),
            "–" if one.throughput is None else f"{one.throughput:,.0f}",
            "–" if one.relative_error is None else f"{one.relative_error:.2%}",
            "–" if one.metric is None else f"{one.metric:.4f}",
            one.parameter_digest[:12],
        )
    show(console, table)
