"""Ctrl-C while trials run on this machine: the first one saves the running trials, a second one
ends them at once.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

# CI systems and `timeout` send SIGTERM where a person would press Ctrl-C, a terminal that is closed
# SIGHUP, and Slurm what `--signal` says, which is SIGUSR2 to ranks.
REASONS = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP",
    signal.SIGUSR2: "SIGUSR2",
}
# Seconds in which further signals count as the same one: a command that wraps ours passes on what
# the terminal has sent to both.
SAME_REQUEST = 1.0


class _Request:
    """Remembers that somebody has asked to stop."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self.reason: str | None = None
        self.at = 0.0  # on the monotonic clock
        self.announce = announce
        self.is_announced = False

    def on_signal(self, number: int, frame: object) -> None:
        """Note the first request; raise KeyboardInterrupt for the second."""
        now = time.monotonic()
        if number == signal.SIGHUP:
            _leave_closed_terminal()
        if self.reason is None:
            self.reason = REASONS[signal.Signals(number)]
            self.at = now
        elif now > self.at + SAME_REQUEST:
            raise KeyboardInterrupt

    def stop_reason(self) -> str | None:
        """Return why to stop; the first time, tell the user what happens now.

        A signal handler must not print: it may have interrupted somebody who does.
        """
        if self.reason is not None and not self.is_announced:
            self.is_announced = True
            self.announce(
                f"{self.reason}: running trials save their state and stop;"
                " press Ctrl-C again to end them at once"
            )
        return self.reason


def interrupt(number: int, frame: object) -> None:
    """Treat a signal as Ctrl-C, so that every process that was started is ended too.

    By Python's default these signals end the process at once, without the cleanup of `with` and
    `finally`.
    """
    if number == signal.SIGHUP:
        _leave_closed_terminal()
    raise KeyboardInterrupt


def handle_signals(handler: Callable[[int, Any], object]) -> dict[signal.Signals, Any]:
    """Have the signals in REASONS handled like this; return by what they were until now.

    One that is ignored stays so, as those are that `nohup` has ignored.
    """
    previous = {}
    for number in REASONS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            previous[number] = signal.signal(number, handler)
    return previous


def _leave_closed_terminal() -> None:
    """Print nowhere from now on, if the terminal is closed: nothing can be printed there."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a stream without a file
            if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode) and not os.isatty(stream.fileno()):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def deferred_interrupts(announce: Callable[[str], None]) -> Iterator[Callable[[], str | None]]:
    """Give a function that returns why to stop, None as long as nobody has asked for it.

    `announce` is called with what the user should know about it.

    A first Ctrl-C in the block raises nothing; KeyboardInterrupt is raised at the end of the block
    instead. A second one raises it at once. A signal that is ignored stays so, and outside of the
    main thread, where Python handles no signals, nothing changes.
    """
    request = _Request(announce)
    previous_handlers = {}
    if threading.current_thread() is threading.main_thread():
        previous_handlers = handle_signals(request.on_signal)
    try:
        yield request.stop_reason
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
    if request.reason is not None:
        raise KeyboardInterrupt
