"""The sections that show values with their intervals and verdicts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from harness.analysis.compare import Row
from harness.render.html.facts import CellFacts, Facts
from harness.render.html.rows import Group, Ratios, Scale, Verdict
from harness.statistics.attribution import Effect
from harness.statistics.verdict import ALPHA

Bounds = tuple[float, float]
NONE = Verdict("", "")


def speedups(facts: Facts) -> list[Group]:
    """Each cell against the first of its workload."""
    groups = []
    for label, cells in facts.workloads.items():
        found = [(cell.name, row) for cell in cells if (row := facts.row(cell.cell))]
        reference = facts.reference(label)
        if found and reference:
            groups.append(_compared(label, found, note=f"1× is {reference.name}"))
    return groups


def against(facts: Facts) -> list[Group]:
    """The sweep's cells against what it was asked to be held against, in throughput."""
    if facts.against is None:
        return []
    name, comparison = facts.against
    found = [
        (row.b.cell.label, row) for row in comparison.rows if row.verdict.question.metric.relative
    ]
    return [_compared(name, found, note=f"1× is {name}")] if found else []


def _compared(title: str, found: Sequence[tuple[str, Row]], note: str) -> Group:
    rows = []
    for label, row in found:
        verdict = row.verdict
        ratio = verdict.question.metric.back_transform(verdict.question.estimate.value)
        bounds = (
            None
            if verdict.question.estimate.standard_error is None
            else (verdict.low, verdict.high)
        )
        rows.append((label, ratio, bounds, _verdict(row)))
    return _ratios(title, rows, note)


def _verdict(row: Row | None) -> Verdict:
    if row is None:
        return NONE
    look = "open" if row.verdict.outcome == "inconclusive" else row.verdict.outcome
    return Verdict(row.verdict.label, look)


def _ratios(
    title: str, found: Sequence[tuple[str, float, Bounds | None, Verdict]], note: str
) -> Group:
    scale = Ratios(
        [ratio for _, ratio, _, _ in found],
        [bound for _, _, bounds, _ in found for bound in bounds or ()],
    )
    rows = []
    for label, ratio, bounds, verdict in found:
        interval = f" ({bounds[0]:.2f} to {bounds[1]:.2f})" if bounds else ""
        rows.append(scale.span(label, ratio, bounds, f"{ratio:.2f}×{interval}", verdict))
    return Group(title=title, rows=rows, ticks=scale.ticks(), mark=scale.place(1.0), note=note)


def bought(facts: Facts) -> list[Group]:
    """What each axis buys, and how much more of it with a value of another axis than without."""
    groups = []
    for label, found in facts.attributions.items():
        alone = [effect for effect in found.effects if len(effect.levels) == 1]
        together = [effect for effect in found.effects if len(effect.levels) > 1]
        note = "; ".join(
            f"{' and '.join(term)} can't be told from the other axes" for term in found.unknown
        )
        if alone:
            groups.append(
                _ratios(label, [_effect(one, "faster", "slower") for one in _sorted(alone)], note)
            )
        if together:
            note = "how much more the first buys with the second than without it; 1× is neither more nor less"
            rows = [_effect(one, "more", "less") for one in _sorted(together)]
            groups.append(_ratios(f"{label}: two axes together", rows, note))
    return groups


def _sorted(effects: Sequence[Effect]) -> list[Effect]:
    return sorted(effects, key=lambda effect: -max(effect.ratio, 1 / effect.ratio))


def _effect(effect: Effect, above: str, below: str) -> tuple[str, float, Bounds, Verdict]:
    verdict = Verdict(above, "better") if effect.ratio > 1 else Verdict(below, "worse")
    if effect.p > ALPHA:
        verdict = Verdict("not certain", "open")
    against = f" against {_values(effect.reference)}" if len(effect.levels) == 1 else ""
    return f"{_values(effect.levels)}{against}", effect.ratio, (effect.low, effect.high), verdict


def _values(found: Mapping[str, Hashable]) -> str:
    """`bf16 with ddp`; what is no word by itself has its axis beside it, as in `workers=2`."""
    return " with ".join(
        value if isinstance(value, str) else f"{axis}={value}" for axis, value in found.items()
    )


def accuracy(facts: Facts) -> list[Group]:
    """The target metric at the end, by cell, with verdicts against the first of the workload."""
    groups = []
    for label, cells in facts.workloads.items():
        found = [(cell, _accuracy(cell)) for cell in cells]
        known = [(cell, *one) for cell, one in found if one is not None]
        if not known:
            continue
        scale = Scale(
            [value for _, value, _ in known],
            [bound for _, _, bounds in known for bound in bounds or ()],
        )
        rows = []
        for cell, value, bounds in known:
            text = f"{value:.4f}" + (f" ±{bounds[1] - value:.4f}" if bounds else "")
            rows.append(
                scale.span(
                    cell.name, value, bounds, text, _verdict(facts.row(cell.cell, cell.target))
                )
            )
        first, value, _ = known[0]
        note = f"{first.target}; the line is {first.name}"
        groups.append(
            Group(title=label, rows=rows, ticks=scale.ticks(), mark=scale.place(value), note=note)
        )
    return groups


def _accuracy(cell: CellFacts) -> tuple[float, Bounds | None] | None:
    found = cell.metric
    if found is None:
        return None
    half = found.half_width
    return found.mean, None if half is None else (found.mean - half, found.mean + half)
