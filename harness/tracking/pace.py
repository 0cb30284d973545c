"""Keeps deliveries from taking much of a sweep's time: trials that are short share one."""

from __future__ import annotations

import time

MAX_SHARE = 0.05  # of the time between the ends of two deliveries that the second may take


class Pace:
    """Tells when the next delivery is due, by how long the last one took.

    So trials that take longer than a second are delivered one by one, as each ends. Shorter ones
    wait for a delivery of several, which costs less for each. The same holds for a server that
    takes long to answer.
    """

    def __init__(self) -> None:
        self.due = 0.0  # on the monotonic clock

    def is_due(self) -> bool:
        """Return whether another delivery, as long as the last, takes at most MAX_SHARE."""
        return time.monotonic() >= self.due

    def add(self, seconds: float) -> None:
        """Count a delivery that ended now and took so long."""
        self.due = time.monotonic() + seconds / MAX_SHARE
