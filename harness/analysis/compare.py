"""Holding cells' results against each other: what may be compared, and what comes out."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.analysis.questions import (
    ACCURACY_MARGIN,
    SPEED,
    MetricDifference,
    accuracy,
    drifts,
    hardware_keys,
    pairs,
    same_bits,
    speed,
)
from harness.analysis.result import CellResult
from harness.core.errors import BadInput, did_you_mean
from harness.core.paths import Results
from harness.hardware import certificate
from harness.spec.axes import AXES
from harness.spec.cell import Cell
from harness.statistics.estimate import Drift
from harness.statistics.verdict import ALPHA, Correction, Metric, Verdict, judge

CONDITIONS = ("hardware", "code", "software")
IDENTITY = ("workload", "options", "data", "length", "evaluate", "warmup")
DIFFERENCES = (*CONDITIONS, *IDENTITY, *AXES)  # what --across takes


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the things that are compared, as its user named it."""

    name: str
    cells: Sequence[CellResult]

    @property
    def hardware(self) -> set[str]:
        """All that its cells were measured on, by key."""
        return {kind for cell in self.cells for kind in hardware_keys(cell)}


def hardware_of(sides: Iterable[Side]) -> set[str]:
    """All that any of them was measured on, by key."""
    return {kind for side in sides for kind in side.hardware}


def certified_drifts(results: Results, sides: Iterable[Side]) -> Mapping[str, Drift]:
    """That of the sides' hardware, where there is a certificate of it: `Rules.drift`."""
    return certificate.drift_by_hardware(results, hardware_of(sides))


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What counts as a difference. `across` are the differences that are the question; `overrides` are
    the smallest change and the margin of single cells, by the id on the side that is held against; `drift` is that
    of log throughput from one time to another, by hardware."""

    across: Sequence[str] = ()
    min_effect: float = SPEED.min_effect  # a fraction of throughput
    accuracy_margin: float = ACCURACY_MARGIN  # in the target metric's unit
    alpha: float = ALPHA
    correction: Correction = "holm"
    overrides: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    drift: Mapping[str, Drift] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One metric of two cells. Means are geometric for throughput; the verdict is on B against A."""

    a: CellResult
    b: CellResult
    b_side: str
    mean_a: float
    mean_b: float
    verdict: Verdict

    @property
    def metric(self) -> Metric:
        """The metric that the cells are compared in."""
        return self.verdict.metric


@dataclass(frozen=True, kw_only=True)
class Match:
    """Two cells that are held against each other; `bits` counts pairs of equal seed and repeat by whether they ended
    with the same parameters."""

    a: CellResult
    b: CellResult
    b_side: str
    same_bits: int
    pairs: int

    @property
    def hardware(self) -> list[str]:
        """All that it was measured on, by key."""
        return [*hardware_keys(self.a), *hardware_keys(self.b)]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """`differences` are of the conditions, in words; `missing` are cells that only one side has."""

    matches: Sequence[Match]
    rows: Sequence[Row]
    differences: Sequence[str]
    missing: Sequence[str]
    notes: Sequence[str]
    rules: Rules

    def rows_of(self, one: Match) -> list[Row]:
        """A row for each metric of a match."""
        return [
            row
            for row in self.rows
            if row.a is one.a and row.b is one.b and row.b_side == one.b_side
        ]

    @property
    def exit_code(self) -> int:
        """1 if anything is worse, else 3 if anything is inconclusive or missing, else 0."""
        outcomes = {row.verdict.outcome for row in self.rows}
        if "worse" in outcomes:
            return 1
        return 3 if "inconclusive" in outcomes or self.missing else 0


def compare(a: Side, others: Sequence[Side], rules: Rules) -> Comparison:
    """Every other side against `a`; raises BadInput for unlike things whose difference is not the question."""
    check_across(rules.across)
    matches, missing, differences = [], [], []
    for b in others:
        alike, alone = match(a, b, rules.across)
        for one, other in alike:
            differences += _differences(a.name, one, b.name, other, rules.across)
            matches.append(_match(one, other, b.name))
        missing += alone
    return _judged(matches, missing, list(dict.fromkeys(differences)), rules)


def compare_by(side: Side, axes: Sequence[str], rules: Rules) -> Comparison:
    """Within one side: cells that differ in these axes only, against the first of each group; raises BadInput."""
    check_across(axes, AXES, "--by")
    groups: dict[str, list[CellResult]] = {}
    for cell in side.cells:
        groups.setdefault(_key(cell.cell, axes), []).append(cell)
    matches = [
        _match(group[0], other, side.name) for group in groups.values() for other in group[1:]
    ]
    if not matches:
        allowed = " or ".join(_varied(side)) or "nothing: its cells differ in no axis"
        raise BadInput(
            f"--by {','.join(axes)}: found no cells of {side.name} that differ in that only; allowed: {allowed}"
        )
    across = {
        found for one in matches for found in _differences("A", one.a, "B", one.b, rules.across)
    }
    return _judged(matches, [], sorted(across), rules)


def _varied(side: Side) -> list[str]:
    """The axes that two cells of a workload differ in alone, or else several at once, as --by takes them."""
    keyed = [(_key(cell.cell, tuple(AXES)), asdict(cell.cell.axes)) for cell in side.cells]
    found = {
        frozenset(name for name in AXES if left[name] != right[name])
        for (own, left), (its, right) in itertools.combinations(keyed, 2)
        if own == its
    }
    least = [
        names for names in found if names and not any(other < names for other in found if other)
    ]
    return sorted(",".join(name for name in AXES if name in names) for names in least)


def against_first(side: Side) -> Comparison | None:
    """Within a sweep: each cell against the first measured one of its workload, whatever their hardware; None where
    there are no two cells of one workload."""
    ordered = sorted(side.cells, key=lambda cell: not cell.log_throughputs)
    workloads = [_key(cell.cell, tuple(AXES)) for cell in ordered]
    if len(set(workloads)) == len(workloads):
        return None
    return compare_by(Side(name=side.name, cells=ordered), tuple(AXES), Rules(across=("hardware",)))


def check_across(
    names: Sequence[str], allowed: Any = DIFFERENCES, option: str = "--across"
) -> None:
    """Raises BadInput for a word that names no difference."""
    for name in names:
        if name not in allowed:
            raise BadInput(f"{option}: found {name!r}; {did_you_mean(name, allowed)}")


def identity_settings(cell: Cell) -> dict[str, Any]:
    """All that decides a cell's result, by the name that --across knows it by."""
    identity = cell.workload.identity
    data = {"data": identity.get("data"), "files": identity.get("files")}
    return {
        "workload": identity["uses"],
        "options": identity.get("options"),
        "data": data,
        "length": asdict(cell.length),
        "evaluate": asdict(cell.evaluate),
        "warmup": cell.warmup,
        **asdict(cell.axes),
    }


def _key(cell: Cell, across: Sequence[str]) -> str:
    return json.dumps(
        {name: value for name, value in identity_settings(cell).items() if name not in across},
        sort_keys=True,
    )


def match(
    a: Side, b: Side, across: Sequence[str]
) -> tuple[list[tuple[CellResult, CellResult]], list[str]]:
    """Cells that are alike in all but what the question is about, and the labels of those that are alone; raises
    BadInput if none are alike, or if it can't be told which belongs to which."""
    ours: dict[str, CellResult] = {}
    theirs: dict[str, CellResult] = {}
    for side, keyed in ((a, ours), (b, theirs)):
        for cell in side.cells:
            first = keyed.setdefault(_key(cell.cell, across), cell)
            if first is not cell:
                raise BadInput(
                    f"--across {','.join(across)}: {side.name} has {first.cell.label} and {cell.cell.label}, which are"
                    " alike in all else; name one of them, or compare within one sweep with --by"
                )
    alike = [(cell, theirs[key]) for key, cell in ours.items() if key in theirs]
    if not alike:
        raise BadInput(_unlike(a, b, across))
    alone = [
        f"{cell.cell.label}: only in {a.name}" for key, cell in ours.items() if key not in theirs
    ]
    alone += [
        f"{cell.cell.label}: only in {b.name}" for key, cell in theirs.items() if key not in ours
    ]
    return alike, alone


def _unlike(a: Side, b: Side, across: Sequence[str]) -> str:
    """Names the differences of the two cells that have the fewest."""

    def differing(one: CellResult, other: CellResult) -> dict[str, tuple[Any, Any]]:
        left, right = identity_settings(one.cell), identity_settings(other.cell)
        return {
            name: (left[name], right[name])
            for name in left
            if name not in across and left[name] != right[name]
        }

    nearest = min((differing(one, other) for one in a.cells for other in b.cells), key=len)
    told = "; ".join(
        f"{name}: {_short(left)} and {_short(right)}" for name, (left, right) in nearest.items()
    )
    return (
        f"{a.name} and {b.name} have no cell in common; the nearest differ in {told};"
        f" if that is the question: --across {','.join([*across, *nearest])}"
    )


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:59] + "…"


def _differences(
    a_name: str, a: CellResult, b_name: str, b: CellResult, across: Sequence[str]
) -> list[str]:
    """Other conditions, in words. Other hardware is refused unless it is the question; raises BadInput."""
    found: list[str] = []
    for kind in CONDITIONS if a.trials and b.trials else ():
        left, right = (
            " and ".join(sorted(side.conditions.get(kind, ["unknown"]))) for side in (a, b)
        )
        if left == right and "unknown" not in left and (kind != "hardware" or " and " not in left):
            continue
        words = f"{kind}: {left} ({a_name}), {right} ({b_name})"
        if kind == "hardware" and kind not in across:
            raise BadInput(
                f"{a.cell.label}: other hardware: {words}; if that is the question: --across hardware"
            )
        found.append(words)
    return found


def _match(a: CellResult, b: CellResult, b_side: str) -> Match:
    return Match(a=a, b=b, b_side=b_side, same_bits=same_bits(a, b), pairs=len(pairs(a, b)))


def _judged(
    matches: Sequence[Match], missing: list[str], differences: list[str], rules: Rules
) -> Comparison:
    asked: list[tuple[Match, MetricDifference]] = []
    notes: dict[str, None] = {}
    for one in matches:
        label = one.b.cell.label
        min_effect, margin = rules.overrides.get(
            one.b.cell.id, (rules.min_effect, rules.accuracy_margin)
        )
        fast, accurate = (
            speed(one.a, one.b, min_effect, rules.drift),
            accuracy(one.a, one.b, margin),
        )
        asked += [(one, found) for found in (fast, accurate) if found is not None]
        if fast is None:
            missing.append(f"{label}: no measured throughput in {_lacking(one)}")
        elif not fast.question.estimate.paired:
            notes[_apart(drifts((one.a, one.b), rules.drift))] = None
        if fast is not None and accurate is None and (one.a.target or one.b.target):
            missing.append(f"{label}: no target metric that both sides have")
        if fast is not None and one.a.trials == one.b.trials:
            missing.append(
                f"{label}: both sides are the same trials, so there is nothing to compare"
            )
        if any(trial.settled is False for side in (one.a, one.b) for trial in side.trials):
            notes[f"{label}: some trials never reached a steady state"] = None
        if fast is not None:
            told = _left_out(one)
            missing += [f"{label}: {words}" for status, words in told if status != "invalid"]
            notes |= dict.fromkeys(
                f"{label}: left out {words}" for status, words in told if status == "invalid"
            )
    verdicts = judge(
        [found.question for _, found in asked], alpha=rules.alpha, correction=rules.correction
    )
    rows = [
        Row(
            a=one.a,
            b=one.b,
            b_side=one.b_side,
            mean_a=found.mean_a,
            mean_b=found.mean_b,
            verdict=verdict,
        )
        for (one, found), verdict in zip(asked, verdicts, strict=True)
    ]
    return Comparison(
        matches=matches,
        rows=rows,
        differences=differences,
        missing=missing,
        notes=list(notes),
        rules=rules,
    )


def _apart(known: Sequence[Drift]) -> str:
    """What sides that were not measured in turn may differ by."""
    if not known:
        return (
            "not interleaved: what the machine did between the two counts as a difference of them;"
            " harness certify measures how much that can be"
        )
    moved = math.expm1(math.hypot(*(one.deviation for one in known)))
    return f"not interleaved: the interval allows for the {moved:.1%} by which the machine moved between certificates"


def _left_out(one: Match) -> list[tuple[str, str]]:
    """By status, as in `2 failed trials of B`."""
    sides = (("A", one.a), ("B", one.b))
    return [
        (status, f"{count} {status} trials of {name}")
        for name, side in sides
        for status, count in side.left_out.items()
    ]


def _lacking(one: Match) -> str:
    told = []
    for name, side in (("A", one.a), ("B", one.b)):
        if not side.log_throughputs:
            why = ", ".join(f"{count} {status}" for status, count in side.left_out.items())
            told.append(f"{name} ({why or 'too few steps'})")
    return " and ".join(told)
