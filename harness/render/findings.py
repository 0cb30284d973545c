"""Puts what is certain about a workload's cells into sentences, for the report and for MLflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.analysis.compare import Row
from harness.analysis.result import CellResult
from harness.analysis.sweep_result import SweepResult
from harness.render import format as fmt
from harness.spec.cell import Cell
from harness.statistics.verdict import ALPHA

MAX_NAMES = 3  # cells or effects that a sentence names; of more, only the number
VERDICT_ORDER = ("faster", "slower", "same", "inconclusive")

CellName = Callable[[Cell], str]  # how a renderer calls a cell


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What there is to say about one workload."""

    workload: str
    winner: str  # the name of the fastest cell
    is_certain: bool | None  # whether every other cell is slower; None without another cell
    sentences: Sequence[str]


def findings(result: SweepResult, name: CellName) -> list[Finding]:
    """Return the finding on each workload of which a cell was measured."""
    return [
        _finding(result, workload, name)
        for workload in result.workloads
        if result.ranking(workload)
    ]


def _finding(result: SweepResult, workload: str, name: CellName) -> Finding:
    winner, *others = result.ranking(workload)
    sentences = [_speed_sentence(result, workload, name)]
    is_certain = None
    if others:
        is_certain = result.is_winner_certain(workload)
        sentences.append(_certainty_sentence(result, workload, name))
    sentences += _accuracy_sentences(result, winner)
    sentences += _verdict_sentences(result, workload)
    sentences += _effect_sentences(result, workload)
    return Finding(
        workload=workload, winner=name(winner.cell), is_certain=is_certain, sentences=sentences
    )


def _speed_sentence(result: SweepResult, workload: str, name: CellName) -> str:
    """Say how fast the fastest cell is, and how it compares with the reference."""
    winner, *others = result.ranking(workload)
    assert winner.throughput is not None  # a cell without one has no rank
    speed = f"{fmt.samples_per_second(winner.throughput.mean)} samples/s"
    if not others:
        return f"{name(winner.cell)} reaches {speed}; no other cell was measured."
    fastest = f"Fastest is {name(winner.cell)} with {speed}"
    row = result.throughput_row(winner.cell)
    if row is None:
        return f"{fastest}; it is the reference itself."
    interval = ""
    if row.verdict.interval is not None:
        low, high = row.verdict.interval
        interval = f" (95% interval {fmt.bounds(low, high, digits=2)})"
    ratio = f"{row.verdict.effect:.2f} times the reference {name(row.a.cell)}{interval}"
    return f"{fastest}, {ratio}: {row.verdict.label}."


def _certainty_sentence(result: SweepResult, workload: str, name: CellName) -> str:
    """Say whether the fastest cell is certain to be the fastest."""
    _, *others = result.ranking(workload)
    if result.is_winner_certain(workload):
        slower = "the other cell" if len(others) == 1 else f"each of the other {len(others)} cells"
        return f"That is certain at {1 - ALPHA:.0%}: {slower} is slower."
    if result.has_single_trials(workload):
        return "Not certain: one trial per cell shows no variation; add seeds or repeats."
    contenders = result.contenders(workload)
    names = ", ".join(name(cell.cell) for cell in contenders[:MAX_NAMES])
    more = len(contenders) - MAX_NAMES
    if more > 0:
        names += f" and {more} more"
    return f"Not certain: {names} may be as fast; more seeds or repeats narrow the intervals."


def _accuracy_sentences(result: SweepResult, winner: CellResult) -> list[str]:
    """Say what target metric the fastest cell reaches, and how it compares with the reference."""
    if winner.metric is None or winner.target is None:
        return []
    value = f"It reaches {winner.target.name} {fmt.metric_value(winner.metric.mean)}"
    row = result.metric_row(winner.cell)
    if row is None:
        return [f"{value}."]
    return [f"{value}{_metric_comparison(row)}."]


def _metric_comparison(row: Row) -> str:
    reference = f"the reference's {fmt.metric_value(row.mean_a)}"
    outcome = row.verdict.outcome
    if outcome == "inconclusive":
        return f"; whether that differs from {reference} is uncertain"
    if outcome == "same":
        return f", the same as {reference}"
    return f", {outcome} than {reference}"


def _verdict_sentences(result: SweepResult, workload: str) -> list[str]:
    """Say how many cells of the workload have which verdict on their throughput."""
    labels = []
    for cell_result in result.workloads[workload]:
        row = result.throughput_row(cell_result.cell)
        if row is not None:
            labels.append(row.verdict.label)
    if not labels:
        return []
    ordered = sorted(labels, key=VERDICT_ORDER.index)
    return [f"Compared with the reference, over all cells: {fmt.counts(ordered)}."]


def _effect_sentences(result: SweepResult, workload: str) -> list[str]:
    """Say what the axes with the largest certain effects contribute."""
    if workload not in result.attributions:
        return []
    effects = result.attributions[workload].main_effects
    certain = [effect for effect in effects if effect.is_certain]
    if not certain:
        return []
    clauses = [fmt.effect_sentence(effect) for effect in certain[:MAX_NAMES]]
    return [f"On average over the other axes, {'; '.join(clauses)}."]
