"""How a program that loads torch begins, before it imports torch."""

from __future__ import annotations

from harness.core.processes import die_with_parent
from harness.training.interruption import block_signal


def before_torch() -> None:
    """Have the program end with its starter, and the signal to stop wait until it is looked for."""
    die_with_parent()
    block_signal()  # before NumPy starts threads
