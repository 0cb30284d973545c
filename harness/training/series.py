"""The numbers of each step, which a rank appends to a file next to its checkpoints.

So a save takes as long after a million steps as after ten. A file has a row of float64 for each step:
the loss, the seconds of the step, and those of each phase. What is written after a checkpoint is cut
off when a trial resumes from it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.measure.clock import Phase
from harness.training.state import Series, TrainingState

COLUMNS = 2 + len(Phase)
ROW_BYTES = 8 * COLUMNS


@dataclass(frozen=True)
class Rows:
    """Rows of some steps, the first of which is the step `start`."""

    start: int
    values: NDArray[np.float64]  # shape (steps, COLUMNS); NaN for a phase that is not known


class SeriesFile:
    """The file of one rank."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._steps = 0  # whose rows the file has, for all that this process knows

    def rows(self) -> int:
        """Return how many steps the file has."""
        try:
            return self.path.stat().st_size // ROW_BYTES
        except FileNotFoundError:
            return 0

    def rows_since_last(self, state: TrainingState) -> Rows:
        """Return the rows of the steps that the file lacks."""
        start = self._steps
        values = np.full((len(state.losses) - start, COLUMNS), np.nan)
        values[:, 0] = state.losses[start:]
        values[:, 1] = state.step_seconds[start:]
        for phase in Phase:
            seconds = state.step_phases.get(phase.name)
            if seconds is not None:
                values[:, 2 + phase] = seconds[start:]
        return Rows(start, values)

    def append(self, rows: Rows) -> None:
        """Write rows where they belong, flushed to the disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.seek(rows.start * ROW_BYTES)
            file.write(rows.values.tobytes())
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        self._steps = rows.start + len(rows.values)

    def read(self, steps: int) -> Series:
        """Return the numbers of the first `steps` steps, and cut off the others."""
        self.truncate(steps)
        values = np.fromfile(self.path, dtype=np.float64).reshape(-1, COLUMNS)
        phases = {}
        for phase in Phase:
            seconds = values[:, 2 + phase]
            phases[phase.name] = seconds.tolist()
        return Series(
            losses=values[:, 0].tolist(), step_seconds=values[:, 1].tolist(), step_phases=phases
        )

    def truncate(self, steps: int) -> None:
        """Cut off all but the first `steps` steps."""
        self._steps = steps
        if self.path.exists():
            os.truncate(self.path, steps * ROW_BYTES)
