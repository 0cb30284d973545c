"""What a process does, as it is seen from outside: its stacks.

A process that calls `write_stacks_on_signal` writes its Python stacks into its log when it gets a
signal. The handler needs no lock of Python, so it works in an endless loop of native code too.
"""

from __future__ import annotations

import faulthandler
import signal
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import psutil

from harness.core.files import open_log, read_tail
from harness.records.record import own_frame

# Has a process write the Python stacks of its threads. No library and no user has one this high.
STACK_SIGNAL = signal.SIGRTMIN + 5
# What faulthandler writes before the calls of a thread, and how each of them begins.
THREAD, CALL = "(most recent call first):\n", '  File "'


def write_stacks_on_signal() -> None:
    """Have this process write its Python stacks to its log when it is asked, and when it crashes.

    Processes that it forks do too.
    """
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL)


def site_of(stack: str) -> str:
    """Return the user's own line of a traceback, as in `train.py:88`, empty without one."""
    frame = own_frame(stack)
    return "" if frame is None else f"{Path(frame[0]).name}:{frame[1]}"


def ask_for_stacks(pid: int, created: float) -> None:
    """Have a rank write its stacks to its log, if it is on this host and was created at this time.

    It catches the signal from its start on.
    """
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if abs(process.create_time() - created) < 1:
            process.send_signal(STACK_SIGNAL)


def last_stack(log: Path) -> str:
    """Return the main thread's stack that a process has written to its log last; empty for none.

    The main thread is the last of those that faulthandler writes. Here the last call is at the end.
    """
    with suppress(OSError), open_log(log) as file:
        _, _, after = read_tail(file).rpartition(THREAD)
        calls = list(takewhile(lambda line: line.startswith(CALL), after.splitlines()))
        return "\n".join(reversed(calls))
    return ""
