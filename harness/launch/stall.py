"""Tells whether a process that is waited for still makes progress.

How long one takes to load torch or MLflow depends on the file system. One that is stopped, or hangs,
shows by its CPU time long before any limit that is fair to slow ones.
"""

from __future__ import annotations

import time

import psutil

POLL = 1.0  # seconds between two looks at a process that is waited for


class StallDetector:
    """Tells for how long a process has made no progress: it neither computes nor waits for a disk."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.cpu_seconds = -1.0
        self.last_progress = time.monotonic()

    def seconds(self) -> float:
        """Return the seconds since the last call that saw progress."""
        now = time.monotonic()
        try:
            process = psutil.Process(self.pid)
            times = process.cpu_times()
            waits_for_disk = process.status() == psutil.STATUS_DISK_SLEEP
        except psutil.NoSuchProcess:  # its connection says so too
            return 0.0
        cpu_seconds = times.user + times.system + times.children_user + times.children_system
        if cpu_seconds != self.cpu_seconds or waits_for_disk:
            self.cpu_seconds = cpu_seconds
            self.last_progress = now
        return now - self.last_progress
