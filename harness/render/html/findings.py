"""The summary in words: what won, by how much, and whether that is certain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.sweep_result import contenders
from harness.render.html.facts import CellFacts, Facts
from harness.statistics.attribution import Effect, Levels
from harness.statistics.verdict import ALPHA

NAMED = 3  # of more only how many


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What is to be said of one workload; `certain` is None where one trial a cell tells nothing."""

    workload: str
    winner: str
    certain: bool | None
    sentences: Sequence[str]


def findings(facts: Facts) -> list[Finding]:
    """Of each workload of which a cell was measured."""
    return [
        _finding(facts, label, cells)
        for label, cells in facts.workloads.items()
        if any(c.rate for c in cells)
    ]


def _finding(facts: Facts, label: str, cells: Sequence[CellFacts]) -> Finding:
    measured = sorted(
        (cell for cell in cells if cell.rate),
        key=lambda c: c.rate.mean if c.rate else 0.0,
        reverse=True,
    )
    winner, others = measured[0], measured[1:]
    sentences = [_speed(facts, label, winner)]
    certain = None
    if others:
        close = _contenders(winner, others)
        alone = all(len(cell.done) < 2 for cell in measured)
        certain = None if alone else not close
        sentences.append(_certainty(measured, close, alone=alone))
    sentences += _accuracy(facts, winner) + _counts(facts, cells) + _effects(facts, label)
    return Finding(workload=label, winner=winner.name, certain=certain, sentences=sentences)


def _speed(facts: Facts, label: str, winner: CellFacts) -> str:
    assert winner.rate is not None
    if sum(cell.rate is not None for cell in facts.workloads[label]) == 1:
        return f"{winner.name} does {winner.rate.mean:,.0f} samples/s; no other cell was measured."
    told = f"Fastest is {winner.name} with {winner.rate.mean:,.0f} samples/s"
    reference, row = facts.reference(label), facts.row(winner.cell)
    if row is None or reference is None:
        return f"{told}; it is the reference itself."
    ratio = row.verdict.question.metric.back_transform(row.verdict.question.estimate.value)
    known = row.verdict.question.estimate.standard_error is not None
    interval = f" (95% interval {row.verdict.low:.2f} to {row.verdict.high:.2f})" if known else ""
    return (
        f"{told}, {ratio:.2f} times the reference {reference.name}{interval}: {row.verdict.label}."
    )


def _contenders(winner: CellFacts, others: Sequence[CellFacts]) -> list[CellFacts]:
    assert winner.result is not None
    close = contenders(winner.result, [cell.result for cell in others if cell.result])
    return [cell for cell in others if any(cell.cell.id == one.cell.id for one in close)]


def _certainty(measured: Sequence[CellFacts], close: Sequence[CellFacts], *, alone: bool) -> str:
    if alone:
        return (
            "Not certain: a single trial a cell tells nothing of chance; more seeds or repeats do."
        )
    if not close:
        return f"That is certain at {1 - ALPHA:.0%}: each of the other {len(measured) - 1} cells is slower."
    names = ", ".join(cell.name for cell in close[:NAMED])
    more = f" and {len(close) - NAMED} more" if len(close) > NAMED else ""
    return f"Not certain: it can't be told from {names}{more}; more seeds or repeats narrow that."


def _accuracy(facts: Facts, winner: CellFacts) -> list[str]:
    row = facts.row(winner.cell, winner.target)
    if winner.metric is None:
        return []
    told = f"It ends at {winner.target} {winner.metric.mean:.4f}"
    if row is None:
        return [f"{told}."]
    verdict = row.verdict
    if verdict.outcome == "inconclusive":
        return [
            f"{told}; whether that differs from the reference's {row.mean_a:.4f} can't be told."
        ]
    word = "the same as" if verdict.outcome == "same" else f"{verdict.outcome} than"
    return [f"{told}, {word} the reference's {row.mean_a:.4f}."]


def _counts(facts: Facts, cells: Sequence[CellFacts]) -> list[str]:
    words = Counter(row.verdict.label for cell in cells if (row := facts.row(cell.cell)))
    if not words:
        return []
    told = ", ".join(
        f"{words[word]} {word}"
        for word in ("faster", "slower", "same", "inconclusive")
        if words.get(word)
    )
    return [f"Against the reference, over all cells together: {told}."]


def _effects(facts: Facts, label: str) -> list[str]:
    """The main effects that are certain, the largest first."""
    found = facts.attributions[label].effects if label in facts.attributions else ()
    sure = [effect for effect in found if len(effect.levels) == 1 and effect.p <= ALPHA]
    sure.sort(key=lambda effect: -max(effect.ratio, 1 / effect.ratio))
    return (
        [f"In the mean over the other axes, {'; '.join(map(effect_words, sure[:NAMED]))}."]
        if sure
        else []
    )


def effect_words(effect: Effect) -> str:
    interval = f"({effect.low:.2f} to {effect.high:.2f})"
    return (
        f"{levels(effect.levels)} is {effect.ratio:.2f} times {levels(effect.reference)} {interval}"
    )


def levels(found: Levels) -> str:
    """`precision=bf16 with strategy=ddp`."""
    return " with ".join(f"{name}={level}" for name, level in found.items())
