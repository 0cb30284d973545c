"""Locks between processes, held by an open file: the kernel releases one however its holder ends."""

from __future__ import annotations

import fcntl
import time
from typing import IO, Any

POLL = 0.1  # seconds between two attempts to lock


def lock_file(file: IO[Any], timeout: float, *, is_shared: bool = False) -> bool:
    """Lock an open file for this process alone, or together with others that share it.

    Returns False if another process holds it for `timeout` seconds. Raises OSError where the file system
    has no locks.
    """
    operation = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(file, operation | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
        time.sleep(POLL)
