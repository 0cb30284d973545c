"""How a program that loads torch begins, before it imports torch and once it has."""

from __future__ import annotations

import gc

from harness.core.processes import die_with_parent
from harness.training.interruption import block_signal


def before_torch() -> None:
    """Prepare to load torch, which takes seconds.

    The program ends with its starter from now on, and the signal to stop waits until it looks for
    it. No garbage is looked for: what loading makes stays, and to look at it would take a seventh of
    the time.
    """
    die_with_parent()
    block_signal()  # before NumPy starts threads
    gc.disable()


def after_torch() -> None:
    """Look for garbage again, but not in what is loaded."""
    gc.freeze()
    gc.enable()
