"""Whether a cell passes, from a comparison of a run (B) with its baseline (A)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.analysis.compare import Comparison, Match, Row
from harness.analysis.questions import SPEED
from harness.gate.limits import Limits, Policy
from harness.spec.cell import Cell
from harness.statistics.verdict import ALPHA

Outcome = Literal["pass", "warn", "fail"]
OUTCOMES: dict[Policy, Outcome] = {"ignore": "pass", "warn": "warn", "fail": "fail"}
SEVERITY: Sequence[Outcome] = ("pass", "warn", "fail")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a gate says of one cell: the reasons first, if it doesn't pass, then what was measured."""

    outcome: Outcome = "pass"
    reasons: Sequence[str] = ()
    measured: Sequence[str] = ()
    rows: Sequence[Row] = field(default=(), repr=False)

    @property
    def text(self) -> str:
        return "\n".join([*self.reasons, *self.measured])


def judge_cell(cell: Cell, limits: Limits, found: Comparison, expected: int) -> Answer:
    """Of a cell of `expected` trials in the run; nothing that was not measured passes."""
    told: list[tuple[Outcome, str]] = []
    one = next((one for one in found.matches if cell.id in (one.a.cell.id, one.b.cell.id)), None)
    if one is None:
        return Answer(
            outcome=OUTCOMES[limits.missing],
            reasons=["no baseline of this cell: harness baseline save"],
        )
    rows = found.rows_of(one)
    told += _trials(one, expected)
    told += [_row(row, limits) for row in rows]
    told += _unmeasured(one, rows, limits)
    if limits.bits != "ignore" and one.same_bits < max(one.pairs, 1):
        told.append(
            (OUTCOMES[limits.bits], f"other bits: {one.same_bits} of {one.pairs} pairs end alike")
        )
    told += [
        ("warn", words) for words in found.differences if not words.startswith("code: ")
    ]  # which a gate is for
    told += [("warn", words) for words in found.notes if words.startswith(f"{one.b.cell.label}: ")]
    outcome: Outcome = max((kind for kind, _ in told), key=SEVERITY.index, default="pass")
    return Answer(
        outcome=outcome,
        reasons=[words for kind, words in told if kind != "pass"],
        measured=[words for kind, words in told if kind == "pass"],
        rows=rows,
    )


def _trials(one: Match, expected: int) -> list[tuple[Outcome, str]]:
    """What became of the run's trials that count for nothing."""
    there = len(one.b.trials) + sum(one.b.left_out.values())
    told: list[tuple[Outcome, str]] = [
        ("warn" if status == "invalid" else "fail", f"{count} of {expected} trials {status}")
        for status, count in one.b.left_out.items()
    ]
    if there < expected:
        told.append(("fail", f"{expected - there} of {expected} trials have no record"))
    return told


def _row(row: Row, limits: Limits) -> tuple[Outcome, str]:
    words = describe_row(row)
    outcome = row.verdict.outcome
    if outcome == "worse":
        return "fail", words
    if outcome == "inconclusive":
        if (
            row.verdict.question.estimate.standard_error is None
        ):  # no more of the same would ever tell
            return "fail", f"{words}: more seeds or repeats are needed, in the baseline too"
        return OUTCOMES[limits.inconclusive], words
    return "pass", words


def _unmeasured(one: Match, rows: Sequence[Row], limits: Limits) -> list[tuple[Outcome, str]]:
    measured = {row.verdict.question.metric.name for row in rows}
    lacking = [] if SPEED.name in measured else ["throughput"]
    target = one.a.target or one.b.target
    if target is not None and target.name not in measured:
        lacking.append(target.name)
    return [(OUTCOMES[limits.missing], f"{name}: not measured on both sides") for name in lacking]


def describe_row(row: Row) -> str:
    """`slower: samples/s 19,024 -> 18,120, -4.8% (-5.1% to -4.4%), 5 pairs; what matters: 1.0%`."""
    verdict, metric, estimate = (
        row.verdict,
        row.verdict.question.metric,
        row.verdict.question.estimate,
    )
    count = f"{estimate.count} {'pairs' if estimate.paired else 'trials a side'}"
    if metric.relative:
        a, b, change = (
            f"{row.mean_a:,.0f}",
            f"{row.mean_b:,.0f}",
            f"{metric.back_transform(estimate.value) - 1:+.2%}",
        )
        interval = f"{verdict.low - 1:+.2%} to {verdict.high - 1:+.2%}"
        matters = f"{metric.min_effect:.2%}"
    else:
        a, b, change = f"{row.mean_a:.4f}", f"{row.mean_b:.4f}", f"{estimate.value:+.4f}"
        interval, matters = f"{verdict.low:+.4f} to {verdict.high:+.4f}", f"{metric.min_effect:g}"
    known = f" ({interval})" if estimate.standard_error is not None else ""
    if verdict.outcome == "inconclusive" and verdict.p_change > ALPHA > estimate.p_change():
        known += ", certain for this cell alone but not over all of them"
    return f"{verdict.label}: {metric.name} {a} → {b}, {change}{known}, {count}; what matters: {matters}"
