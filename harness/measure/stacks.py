"""What a process does, as it is seen from outside: its stacks.

A process that calls `write_stacks_on_signal` writes its Python stacks into its log when it gets a
signal. The handler needs no lock of Python, so it works in an endless loop of native code too.
"""

from __future__ import annotations

import faulthandler
import re
import signal
from contextlib import suppress
from pathlib import Path

import psutil

from harness.records.record import FRAME, own_frame

# Has a process write the Python stacks of its threads. No library and no user has one this high.
STACK_SIGNAL = signal.SIGRTMIN + 5
LOG_END = 2**18  # bytes in which its last stacks are looked for
OF_HARNESS = re.compile(r"/(?:harness|workloads)/")
# A thread in what faulthandler writes, and a call of it.
THREAD = re.compile(r"^(?:Current thread|Thread) 0x.*\(most recent call first\):$", re.MULTILINE)
CALL = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def write_stacks_on_signal() -> None:
    """Have this process write its Python stacks to its log when it is asked, and when it crashes.

    Processes that it forks do too.
    """
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL)


def site_of(stack: str) -> str:
    """Return the user's own line of a traceback, as in `train.py:88`, or else the nearest to it.

    That is the last line of the harness, and of anything if there is none; empty without any.
    """
    calls = FRAME.findall(stack)
    of_harness = [call for call in calls if OF_HARNESS.search(call[0])]
    frame = own_frame(stack) or (of_harness or calls or [None])[-1]
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
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_END))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    *_, calls = THREAD.split(text)
    lines = []
    for path, line, name in reversed(CALL.findall(calls)):
        lines.append(f'  File "{path}", line {line}, in {name}')
    return "\n".join(lines)
