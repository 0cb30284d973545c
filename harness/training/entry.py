"""How a program that loads torch begins, before it imports torch."""

from __future__ import annotations

from harness.core.processes import die_with_parent
from harness.training.interruption import block_signal


def before_torch() -> None:
    """Bind the program's life to its starter's, and block the signal to stop until it is polled."""
    die_with_parent()
    block_signal()  # before NumPy starts threads
