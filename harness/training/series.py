"""The numbers of each step, which a rank appends to a file next to its checkpoints.

So a save takes as long after a million steps as after ten. What is written after a checkpoint is cut
off when a trial resumes from it.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.training.state import COLUMNS

ROW_BYTES = 8 * COLUMNS  # of float64


class SeriesFile:
    """The file of one rank: a row of `TrainingState.rows` for each step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = (
            0  # steps that are of this attempt, or of the checkpoint that it resumed from
        )

    def steps(self) -> int:
        """Return how many steps the file has."""
        try:
            return self.path.stat().st_size // ROW_BYTES
        except FileNotFoundError:
            return 0

    def append(self, start: int, rows: NDArray[np.float64]) -> None:
        """Write the rows of the steps from `start` on as the last ones, flushed to the disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.truncate(start * ROW_BYTES)
            file.write(rows.tobytes())
            file.flush()
            os.fsync(file.fileno())
        self.written = start + len(rows)

    def read(self, steps: int) -> NDArray[np.float64]:
        """Return the rows of the first `steps` steps, and cut off the others."""
        os.truncate(self.path, steps * ROW_BYTES)
        self.written = steps
        return np.fromfile(self.path, dtype=np.float64).reshape(-1, COLUMNS)
