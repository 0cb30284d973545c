"""What MLflow is to say of a whole sweep: verdicts on its cells, a leader board, what each axis buys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.analysis.compare import Comparison, Row, Side, against_first
from harness.analysis.effects import attributions
from harness.analysis.questions import SPEED
from harness.analysis.result import CellResult
from harness.statistics.attribution import Attribution, Effect
from harness.statistics.interval import Interval, mean_interval
from harness.statistics.verdict import ALPHA

GAP = "&emsp;"
LENGTHS = (100, 30, 16, 8, 4, 2, 1, 0)  # rows of each table that are tried until a description fits


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """Of a sweep whose trials have all ended."""

    cells: Sequence[CellResult]
    comparison: Comparison | None  # of each cell with the first of its workload
    attributions: Mapping[str, Attribution]

    @staticmethod
    def of(name: str, cells: Sequence[CellResult]) -> Verdicts:
        side = Side(name=name, cells=cells)
        return Verdicts(
            cells=cells, comparison=against_first(side), attributions=attributions(side)
        )

    def rows(self, cell_id: str) -> list[Row]:
        """A cell's, in throughput and in the target metric; the reference has none."""
        return (
            [row for row in self.comparison.rows if row.b.cell.id == cell_id]
            if self.comparison
            else []
        )

    def speed(self, cell_id: str) -> Row | None:
        return next(
            (row for row in self.rows(cell_id) if row.verdict.question.metric.name == SPEED.name),
            None,
        )


def rate(cell: CellResult) -> Interval | None:
    """Samples/s over the trials."""
    speeds = [trial.throughput for trial in cell.trials if trial.throughput]
    return mean_interval(speeds) if speeds else None


def interval_metrics(cell: CellResult) -> dict[str, float]:
    """Of the cell alone: how many trials were measured and the 95% interval of their mean samples/s."""
    found = rate(cell)
    if found is None:
        return {}
    metrics = {"harness.count": float(found.count)}
    if found.half_width is not None:
        low, high = found.mean - found.half_width, found.mean + found.half_width
        metrics |= {"harness.ci_low": low, "harness.ci_high": high}
    return metrics


def verdict_metrics(verdicts: Verdicts, cell_id: str) -> dict[str, float]:
    """The ratio to the reference with its interval, and the smallest change that could have been found."""
    row = verdicts.speed(cell_id)
    if row is None:
        return {}
    verdict, metric = row.verdict, row.verdict.question.metric
    found = {
        "harness.speedup": metric.back_transform(verdict.question.estimate.value),
        "harness.speedup_low": verdict.low,
        "harness.speedup_high": verdict.high,
        "harness.min_detectable_effect": math.inf
        if verdict.min_detectable_effect is None
        else verdict.min_detectable_effect,
    }
    known = verdict.question.estimate.standard_error is not None
    return {
        name: value
        for name, value in found.items()
        if math.isfinite(value) and (known or "_" not in name)
    }


def verdict_tags(verdicts: Verdicts, cell_id: str) -> dict[str, Any]:
    """`harness.verdict` on throughput, one on the target metric, and against which cell; the reference is called so."""
    rows = verdicts.rows(cell_id)
    if not rows:
        held_against = verdicts.comparison.rows if verdicts.comparison else ()
        return (
            {"harness.verdict": "reference"}
            if cell_id in {row.a.cell.id for row in held_against}
            else {}
        )
    tags: dict[str, Any] = {
        "harness.reference": rows[0].a.cell.label,
        "mlflow.note.content": _note(rows),
    }
    for row in rows:
        metric = row.verdict.question.metric
        tags["harness.verdict" if metric.relative else f"harness.verdict_{metric.name}"] = (
            row.verdict.label
        )
    return tags


def _note(rows: Sequence[Row]) -> str:
    heads = ["metric", "this cell", "reference", "difference", "95% interval", "verdict"]
    table = [
        [row.verdict.question.metric.name, *_numbers(row), f"**{row.verdict.label}**"]
        for row in rows
    ]
    return f"Against `{_plain(rows[0].a.cell.label)}`:\n\n{_table(heads, table)}"


def _numbers(row: Row) -> list[str]:
    verdict, metric = row.verdict, row.verdict.question.metric
    known = verdict.question.estimate.standard_error is not None
    value = metric.back_transform(verdict.question.estimate.value)
    if metric.relative:
        interval = f"{verdict.low:.3f} to {verdict.high:.3f}" if known else "–"
        return [f"{row.mean_b:,.0f}", f"{row.mean_a:,.0f}", f"{value:.3f}×", interval]
    interval = f"{verdict.low:+.4f} to {verdict.high:+.4f}" if known else "–"
    return [f"{row.mean_b:.4f}", f"{row.mean_a:.4f}", f"{value:+.4f}", interval]


def describe(description: str, verdicts: Verdicts, room: int) -> str:
    """The sweep's description with its leader board and attribution, in Markdown of at most `room` characters: where
    it does not fit, the tables are shorter."""
    for longest in LENGTHS:
        parts = [description, *(board(verdicts, label, longest) for label in _labels(verdicts))]
        parts += [_bought(label, found, longest) for label, found in verdicts.attributions.items()]
        text = "\n\n".join(part for part in parts if part)
        if len(text) <= room:
            break
    return text


def _labels(verdicts: Verdicts) -> list[str]:
    return list(dict.fromkeys(cell.cell.workload.label for cell in verdicts.cells))


def board(verdicts: Verdicts, label: str, longest: int) -> str:
    """The cells of a workload from the fastest down."""
    found = [
        (cell, one)
        for cell in verdicts.cells
        if cell.cell.workload.label == label and (one := rate(cell))
    ]
    found.sort(key=lambda pair: -pair[1].mean)
    rows = []
    for cell, one in found:
        row = verdicts.speed(cell.cell.id)
        half = "" if one.half_width is None else f" ±{one.half_width / one.mean:.1%}"
        told = [*_numbers(row)[2:], row.verdict.label] if row else ["1×", "", "reference"]
        rows.append([_plain(cell.cell.label), f"{one.mean:,.0f}{half}", str(one.count), *told])
    heads = ["cell", "samples/s", "trials", "against reference", "95% interval", "verdict"]
    return f"**{_plain(label)}**\n\n{_shortened(heads, rows, longest)}" if rows else ""


def _bought(label: str, found: Attribution, longest: int) -> str:
    rows = []
    for effect in sorted(found.effects, key=_importance):
        interval, certain = (
            f"{effect.low:.3f}&nbsp;to&nbsp;{effect.high:.3f}",
            "yes" if effect.p <= ALPHA else "no",
        )
        rows.append(
            [
                _levels(effect.levels),
                _levels(effect.reference),
                f"{effect.ratio:.3f}×",
                interval,
                certain,
            ]
        )
    heads = ["what it buys", "against", "throughput", "95% interval", "certain"]
    return f"**What each axis buys: {_plain(label)}**\n\n{_shortened(heads, rows, longest)}"


def _importance(effect: Effect) -> tuple[int, float]:
    return len(effect.levels), -max(effect.ratio, 1 / effect.ratio)


def _levels(levels: Mapping[str, Any]) -> str:
    return _plain(" with ".join(f"{name}={level}" for name, level in levels.items()))


def _shortened(heads: Sequence[str], rows: Sequence[Sequence[str]], longest: int) -> str:
    rest = len(rows) - longest
    return _table(heads, rows[:longest]) + (f"\n\n… and {rest} more" if rest > 0 else "")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown; MLflow's pages leave no room between columns of their own."""
    lines = [f"{GAP} | ".join(row) for row in (heads, *rows)]
    return "\n".join(
        f"| {line} |" for line in [lines[0], " | ".join(["---"] * len(heads)), *lines[1:]]
    )


def _plain(text: str) -> str:
    """Words of users, without meaning to Markdown or HTML."""
    marked = "".join(f"\\{letter}" if letter in "\\|`*_[]" else letter for letter in text)
    return " ".join(marked.replace("&", "&amp;").replace("<", "&lt;").split())
