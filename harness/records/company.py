"""Says what a trial shared a machine with: its lane, and the trials that ran at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.records.bounds import Number, Ordinal, Share

# Blocks that are shuffled together, for each lane. Of a single one each, two cells in two lanes would
# run next to each other twice as often as next to themselves; with two, 4 times for every 3.
BLOCKS_PER_LANE = 2
# Share of a trial's time for which all lanes must have had a trial, or else it had less company than
# others. The last trials of a sweep are the usual case.
MIN_FULL = 0.9


@dataclass(frozen=True, kw_only=True)
class Lane:
    """The share of a machine that a trial has for itself, while others run in the other lanes.

    The default is the whole machine.
    """

    number: Number = 0  # counted from 0
    count: Ordinal = 1  # lanes of the machine, this one included
    cores: Sequence[Number] = ()  # CPU cores that its ranks are bound to; none: they are not bound
    gpus: Sequence[Number] = ()  # its GPUs among those that a process sees; none: all of them


@dataclass(frozen=True, kw_only=True)
class Company:
    """The trials that ran on the same machine at the same time as a trial."""

    lane: Lane  # that it ran in
    # Trial -> share of this trial's time for which it ran too.
    beside: Mapping[str, Share] = field(default_factory=dict)
    full: Share  # share of this trial's time for which every lane had a trial

    @property
    def had_idle_lanes(self) -> bool:
        """Whether other lanes were empty for too long, so that this trial had less company."""
        return self.full < MIN_FULL

    @property
    def description(self) -> str:
        """Text that is equal for trials whose throughputs may be compared: `8 side by side`."""
        lanes = f"{self.lane.count} side by side"
        return f"{lanes}, with empty lanes" if self.had_idle_lanes else lanes
