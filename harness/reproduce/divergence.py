"""Where two trials part: the first mark that differs, and what came before it.

The cause of a difference is the first thing that was computed differently from the same inputs. A
rank computes its marks in a fixed order, so that is the first mark that differs, as long as every
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

    earliest: RankMark  # the mark that differs first; of several ranks that with the lowest number
    # All marks of the same moment that differ, the first one too, by rank and then in its order.
    together: Sequence[RankMark]
    agreeing: int  # marks before that moment, all of which are the same

    @property
    def ranks(self) -> list[int]:
        """Return the ranks at which something differs at that moment."""
        return sorted({entry.rank for entry in self.together})


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a comparison of two traces has looked at, and found."""

    compared: int  # marks that both trials have
    only_a: int  # marks that the other trial does not have
    only_b: int
    divergence: Divergence | None  # None: all that was compared is the same


def compare(a: Traces, b: Traces, *, global_only: bool = False) -> Comparison:
    """Compare the traces of two trials.

    With the same number of ranks, each rank is compared with its counterpart. With another number,
    ranks have other samples, so only what is the trial's as a whole is compared, at rank 0. With
    `global_only`, this is so in any case: for trials whose ranks cut their batches differently.
    """
    if global_only or len(a) != len(b):
        a, b = _global_part(a), _global_part(b)
    compared = only_a = only_b = 0
    differing: list[RankMark] = []
    agreeing: list[Mark] = []
    for rank, (marks_a, marks_b) in enumerate(zip(a, b, strict=True)):
        digests = {mark.key: mark.digest for mark in marks_b}
        common = [mark for mark in marks_a if mark.key in digests]
        compared += len(common)
        only_a += len(marks_a) - len(common)
        only_b += len(marks_b) - len(common)
        for mark in common:
            if digests[mark.key] == mark.digest:
                agreeing.append(mark)
            else:
                differing.append(RankMark(rank=rank, mark=mark))
    return Comparison(
        compared=compared,
        only_a=only_a,
        only_b=only_b,
        divergence=_first(differing, agreeing),
    )


def _global_part(traces: Traces) -> Traces:
    """Return rank 0's marks of what is the same at all ranks."""
    return [[mark for mark in traces[0] if mark.phase in GLOBAL_PHASES]]


def _first(differing: Sequence[RankMark], agreeing: Sequence[Mark]) -> Divergence | None:
    """Return the first of the marks that differ, None if there are none."""
    if not differing:
        return None
    moment = min(entry.mark.moment for entry in differing)
    together = [entry for entry in differing if entry.mark.moment == moment]
    before = sum(mark.moment < moment for mark in agreeing)
    return Divergence(earliest=together[0], together=together, agreeing=before)
