"""Puts what is certain about a workload's cells into sentences, for the report and for MLflow.

The model of results decides which cell won and whether that is certain. Here it is only said, so
that every renderer says the same of the same result. Texts are plain: escaping is up to the
renderer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.analysis.compare import MetricRow
from harness.analysis.result import CellResult
from harness.analysis.sweep_result import SweepResult
from harness.core.text import counted, listed
from harness.records.differences import shown
from harness.render import format as fmt
from harness.spec.cell import Cell
from harness.statistics.verdict import ALPHA

MAX_NAMES = 3  # cells or effects that a sentence names; of more, only the number
VERDICT_ORDER = ("faster", "slower", "same", "inconclusive")

# How a renderer calls a cell: the report by the axes that differ, MLflow by the whole label.
CellName = Callable[[Cell], str]


@dataclass(frozen=True, kw_only=True)
class WorkloadFinding:
    """What there is to say about one workload.

    The first sentence is on the winner's speed, the second on its certainty if it has rivals.
    """

    workload: str
    winner: str  # the name of the fastest cell
    is_certain: bool | None  # whether every other cell is slower; None without another cell
    sentences: Sequence[str]


def findings(result: SweepResult, name: CellName) -> list[WorkloadFinding]:
    """Return the finding on each workload of which a cell was measured."""
    measured = filter(result.ranking, result.workloads)
    return [_finding(result, workload, name) for workload in measured]


def _finding(result: SweepResult, workload: str, name: CellName) -> WorkloadFinding:
    """Return the finding on one workload; its sentences go from the winner to the axes."""
    winner, *rivals = result.ranking(workload)
    sentences = [_speed_sentence(result, workload, name)]
    is_certain = None
    if rivals:
        is_certain = result.is_winner_certain(workload)
        sentences.append(_certainty_sentence(result, workload, name))
    sentences += _accuracy_sentences(result, winner)
    labels = []
    for cell_result in result.workloads[workload]:
        row = result.throughput_row(cell_result.cell)
        if row is not None:
            labels.append(row.verdict.label)
    if labels:  # none for a workload with a single measured cell
        counts = fmt.counts(sorted(labels, key=VERDICT_ORDER.index))
        sentences.append(f"Compared with the reference, over all cells: {counts}.")
    clauses = []  # effects that are not certain are left to the section with their intervals
    if workload in result.attributions:
        for effect in result.attributions[workload].main_effects:
            if effect.is_certain:
                clauses.append(fmt.effect_sentence(effect))
    if clauses:  # the largest effects come first
        sentences.append(f"On average over the other axes, {'; '.join(clauses[:MAX_NAMES])}.")
    sentences += mixture_sentences(result.workloads[workload])
    return WorkloadFinding(
        workload=workload, winner=name(winner.cell), is_certain=is_certain, sentences=sentences
    )


def _speed_sentence(result: SweepResult, workload: str, name: CellName) -> str:
    """Say how fast the fastest cell is, and how it compares with the reference.

    The verdict at the end of the sentence is the one of the comparison, over all cells together, and
    so is the interval.
    """
    winner, *rivals = result.ranking(workload)
    assert winner.throughput is not None  # a cell without one has no rank
    speed = f"{fmt.samples_per_second(winner.throughput.mean)} {winner.throughput_unit}"
    if not rivals:
        return f"{name(winner.cell)} reaches {speed}; no other cell was measured."
    fastest = f"Fastest is {name(winner.cell)} with {speed}"
    row = result.throughput_row(winner.cell)
    if row is None:
        return f"{fastest}; it is the reference itself."
    interval = ""
    bounds = fmt.shown_effect_bounds(row.verdict)
    if bounds is not None:
        low, high = bounds
        interval = f" (interval {fmt.bounds(low, high, digits=2)})"
    ratio = f"{row.verdict.effect:.2f} times the reference {name(row.a.cell)}{interval}"
    return f"{fastest}, {ratio}: {row.verdict.label}."


def _certainty_sentence(result: SweepResult, workload: str, name: CellName) -> str:
    """Say whether the fastest cell is certain to be the fastest, and if not, which may be it."""
    rivals = result.ranking(workload)[1:]
    if result.is_winner_certain(workload):
        slower = f"each of the other {len(rivals)} cells"
        if len(rivals) == 1:
            slower = "the other cell"
        return f"That is certain at {1 - ALPHA:.0%}: {slower} is slower."
    if result.has_single_trials(workload):
        return "Not certain: one trial per cell shows no variation; add seeds or repeats."
    contenders = result.contenders(workload)
    names = listed([name(cell.cell) for cell in contenders], MAX_NAMES)
    return f"Not certain: {names} may be as fast; more seeds or repeats narrow the intervals."


def _accuracy_sentences(result: SweepResult, winner: CellResult) -> list[str]:
    """Say what target metric the fastest cell reaches, and how it compares with the reference.

    Speed at the cost of accuracy is no win; this sentence shows it next to the speed.
    """
    if winner.metric is None or winner.target is None:
        return []
    value = f"It reaches {winner.target.name} {fmt.metric_value(winner.metric.mean)}"
    row = result.metric_row(winner.cell)
    if row is None:
        return [f"{value}."]
    reference = f"the reference's {fmt.metric_value(row.mean_a)}"
    outcome = row.verdict.outcome
    if outcome == "inconclusive":
        return [f"{value}; whether that differs from {reference} is uncertain."]
    if outcome == "same":
        return [f"{value}, the same as {reference}."]
    return [f"{value}, {outcome} than {reference}."]


def conclusions(result: SweepResult, name: CellName) -> list[str]:
    """Return three sentences on the speed of a sweep's cells: the fastest, equal ones, and open ones.

    Without a second measured cell of any workload there is no sentence on equal or open ones, and
    without a measured cell none at all.
    """
    measured = list(filter(result.ranking, result.workloads))
    contested = [workload for workload in measured if len(result.ranking(workload)) > 1]
    if not contested:
        return [_speed_sentence(result, workload, name) for workload in measured]
    fastest = [_fastest_clause(result, workload, name) for workload in contested]
    rows = []
    equal = []  # cells that are shown to be as fast as the cell that they are compared with
    for cell_result in result.cells:
        row = result.throughput_row(cell_result.cell)
        if row is None:
            continue
        rows.append(row)
        if row.verdict.outcome == "same":
            equal.append(f"{name(row.b.cell)} and {name(row.a.cell)}")
    equal_names = listed(equal, MAX_NAMES) if equal else "none is shown to be"
    return [
        f"Fastest: {'; '.join(fastest)}.",
        f"Equal in speed: {equal_names}.",
        _open_sentence(result, rows, name),
    ]


def _fastest_clause(result: SweepResult, workload: str, name: CellName) -> str:
    """Return the fastest cell of a workload with its speed, and whether that is certain."""
    fastest = result.ranking(workload)[0]
    assert fastest.throughput is not None  # a cell without one has no rank
    rate = f"{fmt.samples_per_second(fastest.throughput.mean)} {fastest.throughput_unit}"
    speed = f"{name(fastest.cell)} with {rate}"
    if result.is_winner_certain(workload):
        return f"{speed}, certain at {1 - ALPHA:.0%}"
    if result.has_single_trials(workload):
        return f"{speed}, not certain with one trial a cell"
    names = [name(cell.cell) for cell in result.contenders(workload)]
    return f"{speed}, not certain: {listed(names, MAX_NAMES)} may be as fast"


def _open_sentence(result: SweepResult, rows: Sequence[MetricRow], name: CellName) -> str:
    """Say which cells have no verdict, and what may give them one."""
    open_rows = [row for row in rows if row.verdict.outcome == "inconclusive"]
    if not open_rows:
        return "Undecided: none."
    names = [f"{name(row.b.cell)} against {name(row.a.cell)}" for row in open_rows]
    undecided = f"Undecided: {listed(names, MAX_NAMES)}"
    if any(row.verdict.estimate.count < fmt.FEWEST_VALUES for row in open_rows):
        return f"{undecided}; that takes {fmt.ENOUGH_SEEDS} seeds or more."
    return f"{undecided}; more seeds or longer trials may decide."


def too_few_notes(cells: Sequence[CellResult]) -> list[str]:
    """Say once that trials, or seeds, are too few for an interval, if that is so for any cell.

    Cells of a single trial do not count: nobody misses their interval.
    """
    intervals = {
        "trial": [cell.throughput for cell in cells],
        "seed": [cell.metric for cell in cells],
    }
    for noun, means in intervals.items():
        for mean in means:
            if mean is not None and 1 < mean.count < fmt.FEWEST_VALUES:
                return [f"{counted(mean.count, noun)}: {fmt.TOO_FEW}"]
    return []


def mixture_sentences(cells: Sequence[CellResult]) -> list[str]:
    """Say of how many cells the trials ran under different versions, settings or hardware."""
    counts: Counter[str] = Counter()
    for cell in cells:
        for name, values in cell.mixed.items():
            counts[f"{name}: {' and '.join(map(shown, values))}"] += 1
    return [
        f"The means of {counted(count, 'cell')} are over trials of different {text}."
        for text, count in counts.items()
    ]
