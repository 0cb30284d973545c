"""The signal that asks ranks to stop and leave a checkpoint.

It is blocked, so that it never strikes in the middle of a step or of a collective, where the other
ranks would wait for ever. Ranks look between segments of training whether it is pending at any of
them.
"""

from __future__ import annotations

import signal

from harness.core.processes import die_with_parent

# Not SIGTERM, with which launchers end the ranks of a trial that has failed.
SIGNAL = signal.SIGUSR2


def before_torch() -> None:
    """Begin a program that loads torch: it ends with its starter, and the signal stays pending."""
    die_with_parent()
    block_signal()  # before NumPy starts threads


def block_signal() -> None:
    """Keep the signal pending for this thread and for all that it starts.

    That is threads, loader workers and compilers. Call it before a library starts a thread: where
    any thread does not block the signal, it would be delivered there and end the process.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})


def is_requested() -> bool:
    """Return whether the signal has come to this process; it stays pending, so it is seen again."""
    return SIGNAL in signal.sigpending()
