"""The signal that asks ranks to stop where they can be taken up again; they look for it, it never strikes them."""

from __future__ import annotations

import signal

SIGNAL = (
    signal.SIGUSR2
)  # not SIGTERM, with which launchers end the ranks of a trial that has failed


def block_signal() -> None:
    """Keep the signal pending for this thread and for all that it starts: threads, loader workers, compilers.

    To be called before a library starts a thread, which would let the signal end the process.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})


def is_requested() -> bool:
    """Whether the signal has come."""
    return SIGNAL in signal.sigpending()
