"""Finds where two trials diverge: the first mark that differs.

The cause of a difference is the first result that was computed differently from the same inputs.
Ranks compute their marks in a fixed order, so it is the first mark that differs, provided that every
mark before it is the same at all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.records.trace import GLOBAL_PHASES, Mark

Traces = Sequence[Sequence[Mark]]  # by rank, each in the order in which the rank computed it


@dataclass(frozen=True, kw_only=True)
class RankMark:
    """A mark of one rank."""

    rank: int
    mark: Mark


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first moment at which two trials differ."""

    earliest: RankMark  # the first mark that differs; of several ranks, that of the lowest
    # All differing marks of that moment, including the first, by rank and then in its order.
    together: Sequence[RankMark]
    agreeing: int  # marks before that moment, all equal

    @property
    def ranks(self) -> list[int]:
        """Return the ranks with a differing mark at that moment."""
        return sorted({entry.rank for entry in self.together})


@dataclass(frozen=True, kw_only=True)
class TraceComparison:
    """The result of comparing two traces."""

    compared: int  # marks that both trials have
    only_a: int  # marks that the other trial does not have
    only_b: int
    divergence: Divergence | None  # None: all compared marks are equal
    # Of these marks, those of tensors that the other trial does not have at that moment.
    other_tensors_a: Sequence[Mark] = ()
    other_tensors_b: Sequence[Mark] = ()

    @property
    def is_same(self) -> bool:
        """Return whether both have the same tensors, with the same bits."""
        return self.divergence is None and not self.other_tensors_a and not self.other_tensors_b


def compare(a: Traces, b: Traces, *, global_only: bool = False) -> TraceComparison:
    """Compare the traces of two trials.

    With the same number of ranks, each rank is compared with its counterpart. With another number,
    ranks have other samples, so only the marks of the whole trial are compared, at rank 0. With
    `global_only`, this is always so: for trials whose ranks split batches differently.
    """
    if global_only or len(a) != len(b):
        a = _global_part(a)
        b = _global_part(b)
    compared = only_a = only_b = 0
    other_a: list[Mark] = []
    other_b: list[Mark] = []
    differing: list[RankMark] = []
    agreeing: list[Mark] = []
    for rank, marks_a in enumerate(a):
        marks_b = b[rank]
        digests = {mark.key: mark.digest for mark in marks_b}
        common = [mark for mark in marks_a if mark.key in digests]
        compared += len(common)
        only_a += len(marks_a) - len(common)
        only_b += len(marks_b) - len(common)
        other_a += _other_tensors(marks_a, marks_b)
        other_b += _other_tensors(marks_b, marks_a)
        for mark in common:
            if digests[mark.key] == mark.digest:
                agreeing.append(mark)
            else:
                differing.append(RankMark(rank=rank, mark=mark))
    return TraceComparison(
        compared=compared,
        only_a=only_a,
        only_b=only_b,
        divergence=_first(differing, agreeing),
        other_tensors_a=other_a,
        other_tensors_b=other_b,
    )


def tensors_of(marks: Sequence[Mark]) -> list[str]:
    """Return phases and names of marks, each once."""
    return list(dict.fromkeys(mark.tensor for mark in marks))


def _other_tensors(marks: Sequence[Mark], counterparts: Sequence[Mark]) -> list[Mark]:
    """Return the marks of tensors that the other trial lacks at moments that it recorded.

    Its step and micro-step tell whether a moment was recorded, since not every step is evaluated and
    a workload need not have a state. A strategy without local gradients shares none with one that has
    some, which is no difference.
    """
    keys = {mark.key for mark in counterparts}
    micro_steps = {(mark.step, mark.micro_step) for mark in counterparts}
    moments = {mark.moment for mark in counterparts}
    named_alike = {mark.moment for mark in marks if mark.key in keys}
    unmatched = []
    for mark in marks:
        is_expected = (mark.step, mark.micro_step) in micro_steps
        if mark.phase == "evaluation":
            is_expected = mark.moment in moments
        elif mark.phase == "backward":
            is_expected = mark.moment in named_alike
        if is_expected and mark.key not in keys:
            unmatched.append(mark)
    return unmatched


def _global_part(traces: Traces) -> Traces:
    """Return rank 0's marks of the phases that all ranks share."""
    marks = [mark for mark in traces[0] if mark.phase in GLOBAL_PHASES]
    return [marks]


def _first(differing: Sequence[RankMark], agreeing: Sequence[Mark]) -> Divergence | None:
    """Return the first of the marks that differ, None if there are none."""
    if not differing:
        return None
    moment = min(entry.mark.moment for entry in differing)
    together = [entry for entry in differing if entry.mark.moment == moment]
    before = sum(mark.moment < moment for mark in agreeing)
    return Divergence(earliest=together[0], together=together, agreeing=before)
