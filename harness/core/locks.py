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
    return _lock(file, fcntl.LOCK_EX, timeout, should_wait)


def share_file(file: int, timeout: float) -> bool:
    """Lock an open file, by its number, together with others that share it.

    Returns False if another process has it alone for `timeout` seconds. Raises OSError as `lock_file`.
    """
    return _lock(file, fcntl.LOCK_SH, timeout, lambda: True)


def _lock(
    file: IO[Any] | int, operation: int, timeout: float, should_wait: Callable[[], bool]
) -> bool:
    """Lock an open file by an operation of flock; return False if that fails to the end."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(file, operation | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline or not should_wait():
                return False
        time.sleep(POLL)
