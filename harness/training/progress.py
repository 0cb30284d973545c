"""How far training has come, for those who watch a trial from outside.

The runner and `harness status` read the file. It is replaced by a rename, so that nobody reads half
of it, but not flushed to the disk: a loss of power may take it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from harness.core.paths import write_atomically

SECONDS_BETWEEN_REPORTS = 0.5  # of training, at least


class Progress:
    """The trial's progress file; `is_writer` is true at the one rank that writes it."""

    def __init__(self, path: Path, total_steps: int, *, is_writer: bool) -> None:
        self._path = path
        self._total_steps = total_steps
        self._is_writer = is_writer
        self._last_report = 0.0  # of training, on the monotonic clock
        # The newest samples/s and loss; they stay in the file until there are newer ones.
        self._pace: dict[str, float] = {}

    def report_training(self, step: int, samples_per_second: float, loss: float) -> None:
        """Report that a segment of training is over, unless another was reported just before.

        Segments are short at the start of a trial, and where epochs are short.
        """
        now = time.monotonic()
        if now - self._last_report <= SECONDS_BETWEEN_REPORTS:
            return
        self._last_report = now
        self._pace = {"rate": samples_per_second, "loss": loss}
        self.report("train", step)

    def report(self, phase: str, step: int) -> None:
        """Report that `phase` begins or goes on after `step` optimizer steps."""
        # The results may have been moved, which the runner notices: they are not begun again here.
        if not self._is_writer or not self._path.parent.exists():
            return
        content = {
            "phase": phase,
            "step": step,
            "steps": self._total_steps,
            "at": time.time(),
            **self._pace,
        }
        write_atomically(self._path, json.dumps(content), durable=False)
