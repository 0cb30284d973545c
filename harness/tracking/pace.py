"""Keeps deliveries from taking much of a sweep's time: trials that are short share one."""

from __future__ import annotations

import time

MAX_SHARE = 0.05  # of the time between the ends of two deliveries that the second may take
MIN_SECONDS = 5.0  # between two deliveries: short trials wait for so long
MAX_SECONDS = 60.0  # between two deliveries, however long the last one took
# A cell's means change with every trial of it. They may take so large a share of the time, besides.
CELLS_SHARE = 0.01


class Pace:
    """Tells when something is due again, by how long it took last.

    Trials that take longer than `min_seconds` are delivered one by one, as each ends. Shorter ones
    wait for a delivery of several, which costs less for each. The same holds for a server that takes
    long to answer.
    """

    def __init__(self, share: float, min_seconds: float, max_seconds: float) -> None:
        self.share = share
        self.min_seconds = min_seconds
        self.max_seconds = max_seconds
        self.due = 0.0  # on the monotonic clock

    def is_due(self) -> bool:
        """Return whether it is time again."""
        return time.monotonic() >= self.due

    def seconds_left(self) -> float:
        """Return the seconds until it is time again."""
        return max(0.0, self.due - time.monotonic())

    def add(self, seconds: float) -> None:
        """Count a delivery that ended now and took so long."""
        wait = max(self.min_seconds, seconds / self.share)
        self.due = time.monotonic() + min(wait, self.max_seconds)


def pace_of_deliveries() -> Pace:
    """Return the pace at which a sweep that runs delivers its trials."""
    return Pace(MAX_SHARE, MIN_SECONDS, MAX_SECONDS)


def pace_of_cells() -> Pace:
    """Return the pace at which such deliveries bring the runs of cells up to date."""
    return Pace(CELLS_SHARE, 0.0, MAX_SECONDS)
