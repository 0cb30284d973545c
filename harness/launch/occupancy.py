"""Notes which trials run at the same time, to say of each which company it had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.records.company import Company, Lane


@dataclass
class _Stay:
    """The time for which the ranks of a trial ran, in seconds since the epoch."""

    trial: str
    start: float
    end: float | None = None  # None: they still run


@dataclass(frozen=True, kw_only=True)
class _Overlap:
    """The part of another trial's stay that falls into a trial's own time."""

    trial: str
    start: float
    end: float


class Occupancy:
    """The trials that have run and run in the lanes of a machine."""

    def __init__(self) -> None:
        self._stays: list[_Stay] = []

    @property
    def running(self) -> int:
        """The number of trials whose ranks run."""
        return sum(stay.end is None for stay in self._stays)

    def enter(self, trial: str, at: float) -> None:
        """Note that the ranks of a trial were started; forget those that no running trial has run with."""
        oldest = min((stay.start for stay in self._stays if stay.end is None), default=at)
        self._stays = [stay for stay in self._stays if stay.end is None or stay.end > oldest]
        self._stays.append(_Stay(trial, at))

    def leave(self, trial: str, at: float) -> None:
        """Note that the ranks of a trial have ended."""
        for stay in self._stays:
            if stay.trial == trial and stay.end is None:
                stay.end = at

    def company(self, trial: str, lane: Lane, start: float, end: float) -> Company | None:
        """Return the company of a trial that ran from `start` to `end`, None for one that needs none."""
        if lane.count == 1:
            return None
        overlaps = self._overlaps(trial, start, end)
        seconds = max(end - start, 1e-9)
        beside: dict[str, float] = {}
        for overlap in overlaps:
            share = (overlap.end - overlap.start) / seconds
            beside[overlap.trial] = min(1.0, beside.get(overlap.trial, 0.0) + share)
        full = _seconds_with(lane.count - 1, overlaps) / seconds
        return Company(lane=lane, beside=beside, full=min(1.0, full))

    def _overlaps(self, trial: str, start: float, end: float) -> list[_Overlap]:
        """Return the parts of other trials' stays that fall between `start` and `end`."""
        overlaps = []
        for stay in self._stays:
            overlap_start = max(start, stay.start)
            overlap_end = end if stay.end is None else min(end, stay.end)
            if stay.trial != trial and overlap_start < overlap_end:
                overlaps.append(_Overlap(trial=stay.trial, start=overlap_start, end=overlap_end))
        return overlaps


def _seconds_with(neighbors: int, overlaps: Sequence[_Overlap]) -> float:
    """Return for how many seconds at least `neighbors` other trials ran at the same time."""
    moments = sorted({moment for overlap in overlaps for moment in (overlap.start, overlap.end)})
    seconds = 0.0
    for start, end in pairwise(moments):
        present = sum(overlap.start <= start and end <= overlap.end for overlap in overlaps)
        if present >= neighbors:
            seconds += end - start
    return seconds
