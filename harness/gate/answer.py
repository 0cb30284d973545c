"""Decides whether a cell passes, from a comparison of a run (B) with its baseline (A)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.analysis.compare import CODE_FIELDS, CellComparison, Match
from harness.analysis.questions import same_bits
from harness.core.text import counted
from harness.gate.limits import Limits, Policy
from harness.statistics.verdict import ALPHA, MetricVerdict
from harness.sweep.cell import THROUGHPUT_UNITS, Cell

# Outcomes of a gate for one cell.
Outcome = Literal["pass", "warn", "fail"]
OUTCOMES: dict[Policy, Outcome] = {"ignore": "pass", "warn": "warn", "fail": "fail"}
SEVERITY: Sequence[Outcome] = ("pass", "warn", "fail")


@dataclass(frozen=True, kw_only=True)
class Reason:
    """One observation about a cell, and the outcome that follows from it."""

    outcome: Outcome
    text: str


@dataclass(frozen=True, kw_only=True)
class GateAnswer:
    """The result of a gate for one cell; its outcome is that of its most severe reason."""

    outcome: Outcome
    reasons: Sequence[str]  # why it does not pass
    measured: Sequence[str] = ()  # measurements that pass
    verdicts: Sequence[MetricVerdict] = field(default=(), repr=False)

    @property
    def text(self) -> str:
        """Return a line for each reason, then one for each passing measurement."""
        return "\n".join([*self.reasons, *self.measured])


def judge_cell(
    cell: Cell,
    limits: Limits,
    comparison: CellComparison,
    expected_trials: int,
) -> GateAnswer:
    """Judge a cell that should have `expected_trials` in the run; a missing measurement never passes."""
    match = _match_of(cell, comparison)
    if match is None:
        return GateAnswer(
            outcome=OUTCOMES[limits.missing],
            reasons=["no baseline of this cell: harness baseline"],
        )
    reasons = _judge_trials(match, expected_trials)
    for verdict in match.verdicts:
        reasons.append(_judge_verdict(verdict, limits))
    reasons += _judge_missing(match, limits)
    reasons += _judge_bits(match, limits)
    reasons += _warnings(match, comparison)
    # The most severe first: pytest's summary shows the first line only.
    reasons.sort(key=lambda reason: SEVERITY.index(reason.outcome), reverse=True)
    outcome: Outcome = reasons[0].outcome if reasons else "pass"
    return GateAnswer(
        outcome=outcome,
        reasons=[reason.text for reason in reasons if reason.outcome != "pass"],
        measured=[reason.text for reason in reasons if reason.outcome == "pass"],
        verdicts=match.verdicts,
    )


def _match_of(cell: Cell, comparison: CellComparison) -> Match | None:
    """Return the match that has a cell on one of its sides, None if there is none."""
    for match in comparison.matches:
        if cell.id in (match.a.cell.id, match.b.cell.id):
            return match
    return None


def _judge_trials(match: Match, expected: int) -> list[Reason]:
    """Return a reason for each kind of trials of the run that do not count.

    Invalid trials, which were measured under conditions that the profile rules out, only warn: the
    code did not cause them. Trials that failed or have no record fail the cell.
    """
    run = match.b
    reasons = []
    for status, count in run.left_out.items():
        outcome: Outcome = "warn" if status == "invalid" else "fail"
        text = f"{count} of {counted(expected, 'trial')} {status}"
        reasons.append(Reason(outcome=outcome, text=text))
    recorded = len(run.trials) + sum(run.left_out.values())
    if recorded < expected:
        text = f"{expected - recorded} of {counted(expected, 'trial')} have no record"
        reasons.append(Reason(outcome="fail", text=text))
    return reasons


def _judge_verdict(verdict: MetricVerdict, limits: Limits) -> Reason:
    """Return the reason that follows from the verdict on one metric.

    Worse always fails; the limits decide about an inconclusive verdict.
    """
    text = describe_verdict(verdict)
    outcome = verdict.outcome
    if outcome == "worse":
        return Reason(outcome="fail", text=text)
    if outcome != "inconclusive":
        return Reason(outcome="pass", text=text)
    if verdict.estimate.count < 2 and verdict.estimate.unit != "sessions":
        # A single value has no interval, and another run with as few values has none either.
        text = f"{text}: more seeds or repeats are needed, in the baseline too"
        return Reason(outcome="fail", text=text)
    return Reason(outcome=OUTCOMES[limits.inconclusive], text=text)


def _judge_missing(match: Match, limits: Limits) -> list[Reason]:
    """Return a reason for each metric that one side lacks, and for a run without trials of its own.

    Throughput is always expected, and the target metric of the workload if it has one.
    """
    measured = {verdict.metric.name for verdict in match.verdicts}
    lacking = []
    if measured.isdisjoint(THROUGHPUT_UNITS):
        lacking.append("throughput")
    target = match.a.target or match.b.target
    if target is not None and target.name not in measured:
        lacking.append(target.name)
    texts = [f"{name}: not measured on both sides" for name in lacking]
    if match.b.trials and match.a.trials == match.b.trials:
        texts.append(
            "run and baseline are the same trials: measure again, as with --harness-trials=all"
        )
    outcome = OUTCOMES[limits.missing]
    return [Reason(outcome=outcome, text=text) for text in texts]


def _judge_bits(match: Match, limits: Limits) -> list[Reason]:
    """Return a reason unless all pairs of trials, at least one, end with the same parameters."""
    if limits.bits == "ignore":
        return []
    pair_count = len(match.pairs)
    alike = same_bits(match.pairs)
    if pair_count and alike == pair_count:
        return []
    text = f"other bits: {alike} of {counted(pair_count, 'pair')} end alike"
    return [Reason(outcome=OUTCOMES[limits.bits], text=text)]


def _warnings(match: Match, comparison: CellComparison) -> list[Reason]:
    """Return warnings: differences between the conditions of both sides, and notes on this cell.

    Differences of code are left out: a gate is there to compare them.
    """
    prefix = f"{match.b.cell.label}: "
    texts = [text for text in comparison.differences if not text.startswith(CODE_FIELDS)]
    for note in comparison.notes:
        if note.startswith(prefix):
            texts.append(note.removeprefix(prefix))
    return [Reason(outcome="warn", text=text) for text in texts]


def describe_verdict(verdict: MetricVerdict) -> str:
    """Return a verdict with its numbers: `slower: samples/s 19,024 → 18,120, -4.75% (-5.11% to …`."""
    metric = verdict.metric
    estimate = verdict.estimate
    if metric.relative:
        change = f"{metric.back_transform(estimate.value) - 1:+.2%}"
        means = f"{verdict.mean_a:,.0f} → {verdict.mean_b:,.0f}"
        interval = f"{verdict.low - 1:+.2%} to {verdict.high - 1:+.2%}"
        min_effect = f"{metric.min_effect:.2%}"
    else:  # in the metric's own unit
        change = f"{estimate.value:+.4f}"
        means = f"{verdict.mean_a:.4f} → {verdict.mean_b:.4f}"
        interval = f"{verdict.low:+.4f} to {verdict.high:+.4f}"
        min_effect = f"{metric.min_effect:g}"
    if verdict.interval is not None:
        change += f" ({interval})"
    is_certain_alone = verdict.p_change > ALPHA > estimate.p_change()
    if verdict.outcome == "inconclusive" and is_certain_alone:
        change += ", certain for this cell alone but not over all of them"
    unit = "trials a side" if estimate.unit == "trials" else estimate.unit
    return (
        f"{verdict.label}: {metric.name} {means}, {change}, {estimate.count} {unit};"
        f" what matters: {min_effect}"
    )
