"""The signal that asks ranks to stop and leave a checkpoint. It is blocked: ranks look whether it has come."""

from __future__ import annotations

import signal

# Not SIGTERM, with which launchers end the ranks of a trial that has failed.
SIGNAL = signal.SIGUSR2


def block_signal() -> None:
    """Keep the signal pending for this thread and for all that it starts: threads, loader workers, compilers.

    Call it before a library starts a thread: in a thread that does not block it, the signal would end the
    process.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})


def is_requested() -> bool:
    """Return whether the signal has come."""
    return SIGNAL in signal.sigpending()
