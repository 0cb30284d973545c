"""The state of a trial at one rank: its measurements so far, and how far it has come.

A checkpoint contains the whole of it, but for the numbers of each step, which are in a file next to it
(`harness.training.checkpoint`). So a resumed trial's record tells of all its attempts. A failed trial's
record has what was in it when the trial failed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
from msgspec import field
from msgspec.structs import replace
from numpy.typing import NDArray

from harness.measure.clock import Phase
from harness.records.record import Evaluation, Interruption

Series = NDArray[np.floating[Any]]
# What is known of a step: this rank's mean loss, its seconds, and those of each phase, NaN where they were
# not timed.
COLUMNS = ("loss", "seconds", *(phase.name for phase in Phase))
# The fields that a RankResult has too.
OF_RESULT = (
    "refilled_steps", "interruptions", "refused_checkpoints", "unsaved", "order_sums", "phases",
)  # fmt: skip


class TrainingState(msgspec.Struct):
    """Progress and measurements of a trial at one rank, over all of its attempts."""

    step: int = 0  # optimizer steps done
    # The numbers of each step, by the name of the column.
    series: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    # Steps, counted from 0, for which a loader may have fetched in an untimed pause.
    refilled_steps: list[int] = []
    evaluations: list[Evaluation] = []
    order_sums: Sequence[int] = (0, 0)  # of the digest of the order (`harness.training.order`)
    interruptions: list[Interruption] = []
    # Checkpoints that attempts did not resume from, and why, a line each.
    refused_checkpoints: list[str] = []
    # The weights of the best evaluation, at rank 0; path relative to the trial's folder.
    best_checkpoint: str | None = None
    unsaved: list[str] = []  # what could not be saved, and why
    # Seconds by the name of the phase: data, build, compile, loader, train, evaluate, ...
    phases: dict[str, float] = {}
    compiled: dict[str, float] = {}  # numbers of the last attempt that trained; none for eager
    training_began_at: float = 0.0  # seconds since the epoch, once it has
    in_step: bool = False  # whether the rank trains at this moment, which other threads read

    def add_steps(self, columns: Mapping[str, Series]) -> None:
        """Append the numbers of a segment's steps; all arrays have the shape (steps,).

        A phase that is missing was not timed.
        """
        untimed = np.full(len(columns["loss"]), np.nan)
        for name, values in self.series.items():
            values += columns.get(name, untimed).tolist()

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain values, without the numbers of each step."""
        return dict(msgspec.to_builtins(replace(self, series={})))

    def resume_from(self, content: Mapping[str, Any], rows: Series) -> None:
        """Take over what `to_dict` returned in an earlier attempt, and `rows`, shape (steps, COLUMNS).

        Seconds that this attempt has spent already, reading data for example, are added to its
        phases, and checkpoints that it has refused to those that it had refused.
        """
        earlier = msgspec.convert(content, TrainingState)
        earlier.refused_checkpoints += self.refused_checkpoints
        for phase, seconds in self.phases.items():
            earlier.add_seconds(phase, seconds)
        for name in content:
            setattr(self, name, getattr(earlier, name))
        self.series = dict(zip(COLUMNS, rows.T.tolist(), strict=True))

    def result(self) -> dict[str, Any]:
        """Return those fields of a RankResult that a trial leaves even if it fails."""
        fields = {name: getattr(self, name) for name in OF_RESULT}
        fields["loss"] = np.asarray(self.series["loss"], dtype=np.float32)
        fields["step_seconds"] = np.asarray(self.series["seconds"], dtype=np.float64)
        fields["step_phases"] = {}
        for phase in Phase:
            seconds = np.asarray(self.series[phase.name], dtype=np.float32)
            if not np.isnan(seconds).all():
                fields["step_phases"][phase.name] = seconds
        return fields

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Add to the seconds that a phase of the trial has taken."""
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds

    def note_unsaved(self, line: str) -> None:
        """Note that something could not be saved, in the rank's log too."""
        print(line, flush=True)
        self.unsaved.append(line)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the seconds of the `with` block to a phase; nothing is added if the block raises."""
        start = time.perf_counter()
        yield
        self.add_seconds(phase, time.perf_counter() - start)
