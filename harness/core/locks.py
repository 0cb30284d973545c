"""Locks between processes, held by an open file: the kernel releases one however its holder ends."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable
from typing import IO, Any

POLL = 0.1  # seconds between two attempts to lock


def lock_file(
    file: IO[Any], timeout: float, should_wait: Callable[[], bool] = lambda: True
) -> bool:
    """Lock an open file for this process alone; return False if another holds it to the end.

    It is waited for as long as `should_wait` says so, and for `timeout` seconds at most. Raises
    OSError where the file system has no locks.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline or not should_wait():
                return False
        time.sleep(POLL)
