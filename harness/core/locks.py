"""Locks between processes, held by an open file: the kernel releases one however its holder ends."""

from __future__ import annotations

import fcntl
import time
from typing import IO, Any

POLL = 0.1  # seconds between two attempts to lock


def lock_file(file: IO[Any], timeout: float) -> bool:
    """Lock an open file for this process alone; return False if another holds it for `timeout` seconds.

    Raises OSError where the file system has no locks.
    """
    return _lock(file, fcntl.LOCK_EX, timeout)


def share_file(file: int, timeout: float) -> bool:
    """Lock an open file, by its number, together with others that share it.

    Returns False if another process has it alone for `timeout` seconds. Raises OSError as `lock_file`.
    """
    return _lock(file, fcntl.LOCK_SH, timeout)


def _lock(file: IO[Any] | int, operation: int, timeout: float) -> bool:
    """Lock an open file by an operation of flock; return False if that fails to the end."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(file, operation | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
        time.sleep(POLL)
