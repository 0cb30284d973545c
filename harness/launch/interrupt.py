"""Ctrl-C while trials run on this machine: the first one saves the running trials, a second one
ends them at once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# CI systems and `timeout` send SIGTERM where a person would press Ctrl-C, a terminal that is closed
# SIGHUP, and Slurm what `--signal` says, which is SIGUSR2 to ranks.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
# Seconds in which further signals count as the same one: a command that wraps ours passes on what
# the terminal has sent to both.
SAME_REQUEST = 1.0


class StopRequest:
    """Whether running trials are to save their state and stop, and why."""

    def __init__(self, announce: Callable[[str], None] = lambda text: None) -> None:
        """`announce` is called with what the user should know, once somebody asks for the reason."""
        self._announce = announce
        self._reason: str | None = None
        self.announcement = ""

    def note(self, reason: str) -> None:
        """Have the trials stop; the reason that was noted before any other counts."""
        self._reason = self._reason or reason

    def reason(self) -> str | None:
        """Return why to stop, None as long as there is no reason.

        A signal handler must not print, as it may have interrupted somebody who does: this prints instead.
        """
        if self.announcement:
            announcement, self.announcement = self.announcement, ""
            self._announce(announcement)
        return self._reason


def handle_signals(handler: Callable[[int, Any], object]) -> dict[signal.Signals, Any]:
    """Have the signals in SIGNALS handled like this; return by what they were until now.

    One that is ignored stays so, as those are that `nohup` has ignored.
    """
    previous = {}
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            previous[number] = signal.signal(number, handler)
    return previous


@contextmanager
def deferred_interrupts(announce: Callable[[str], None]) -> Iterator[StopRequest]:
    """Give a request to stop that signals make.

    A first Ctrl-C in the block raises nothing; KeyboardInterrupt is raised at the end of the block
    instead. A second one raises it at once. A signal that is ignored stays so, and outside of the
    main thread, where Python handles no signals, nothing changes.
    """
    stop = StopRequest(announce)
    interrupted_at: float | None = None  # on the monotonic clock

    def on_signal(number: int, frame: object) -> None:
        """Note the first request; raise KeyboardInterrupt for the second."""
        nonlocal interrupted_at
        if number == signal.SIGHUP:  # nothing can be printed to a terminal that is closed
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
        if interrupted_at is None:
            interrupted_at = time.monotonic()
            name = signal.Signals(number).name
            reason = name.replace("SIGINT", "Ctrl-C")
            stop.note(reason)
            stop.announcement = (
                f"{reason}: running trials stop and save their state where they can;"
                " press Ctrl-C again to end them at once"
            )
        elif time.monotonic() > interrupted_at + SAME_REQUEST:
            raise KeyboardInterrupt

    previous_handlers = {}
    if threading.current_thread() is threading.main_thread():
        previous_handlers = handle_signals(on_signal)
    try:
        yield stop
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
    if interrupted_at is not None:
        raise KeyboardInterrupt
