"""The state of a trial at one rank: its measurements so far, and how far it has come.

A checkpoint contains the whole of it, but for the numbers of each step, which are in a file next to it
(`harness.training.checkpoint`). So a resumed trial's record tells of all its attempts. A
failed trial's record has what was in it when the trial failed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.measure.clock import Phase
from harness.records.record import Compiled, Evaluation, Interruption
from harness.training.order import OrderDigest

COLUMNS = 2 + len(Phase)  # of a step: its loss, its seconds, and those of each phase


def _empty_phases() -> dict[str, list[float]]:
    return {phase.name: [] for phase in Phase}


@dataclass
class TrainingState:
    """Progress and measurements of a trial at one rank, over all of its attempts."""

    step: int = 0  # optimizer steps done
    losses: list[float] = field(default_factory=list)  # of each step, this rank's mean
    step_seconds: list[float] = field(default_factory=list)  # of each step
    # The parts of each step in seconds, by the name of the phase; NaN where they were not timed.
    step_phases: dict[str, list[float]] = field(default_factory=_empty_phases)
    # Steps, counted from 0, for which a loader may have fetched in an untimed pause.
    refilled_steps: list[int] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    order_digest: OrderDigest = field(default_factory=OrderDigest)  # over the steps done
    loader_workers: int = 0  # how many were seen to deliver batches
    interruptions: list[Interruption] = field(default_factory=list)
    # Checkpoints that attempts did not resume from, and why, a line each; at rank 0 alone.
    refused_checkpoints: list[str] = field(default_factory=list)
    best_saved_step: int | None = None  # whose weights are kept as the best ones
    unsaved: list[str] = field(default_factory=list)  # what could not be saved, and why
    # Seconds by the name of the phase: data, build, compile, loader, train, evaluate, ...
    phases: dict[str, float] = field(default_factory=dict)
    compiled: Compiled | None = None  # by the last attempt that trained; None for eager
    began_at: float = field(default_factory=time.time)  # of the process, seconds since the epoch
    training_began_at: float | None = None
    # Of this attempt: the steps done by earlier ones, where it began; what a death would go back to, and
    # when that was saved; and whether the rank trains at this moment, which other threads read.
    resumed_at: int = 0
    saved_step: int = 0
    saved_at: float = field(default_factory=time.time)
    in_step: bool = False

    def add_steps(
        self,
        losses: NDArray[Any],
        seconds: NDArray[Any],
        phases: Mapping[str, NDArray[Any]],
    ) -> None:
        """Append the numbers of a segment's steps; all arrays have the shape (steps,).

        A phase that is missing was not timed.
        """
        self.losses += losses.tolist()
        self.step_seconds += seconds.tolist()
        for name, column in self.step_phases.items():
            column += phases.get(name, np.full(len(losses), np.nan)).tolist()

    def rows(self, start: int) -> NDArray[np.float64]:
        """Return the numbers of the steps from `start` on, shape (steps, COLUMNS)."""
        return np.column_stack([column[start:] for column in self._columns()])

    def _columns(self) -> list[list[float]]:
        """Return the columns of `rows`."""
        return [self.losses, self.step_seconds, *self.step_phases.values()]

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain values, without the numbers of each step."""
        content: dict[str, Any] = msgspec.to_builtins(
            replace(self, losses=[], step_seconds=[], step_phases=_empty_phases())
        )
        return content

    def resume_from(self, content: Mapping[str, Any], rows: NDArray[np.float64]) -> None:
        """Take over what `to_dict` and `rows` returned in an earlier attempt.

        Seconds that this attempt has spent already, reading data for example, are added to its
        phases.
        """
        phases_of_this_attempt = self.phases
        vars(self).update(vars(msgspec.convert(content, TrainingState)))
        for column, values in zip(self._columns(), rows.T, strict=True):
            column += values.tolist()
        for phase, seconds in phases_of_this_attempt.items():
            self.add_seconds(phase, seconds)
        self.resumed_at = self.saved_step = self.step
        self.saved_at, self.in_step = time.time(), False

    def result(self) -> dict[str, Any]:
        """Return those fields of a RankResult that a trial leaves even if it fails."""
        step_phases = {}
        for name, seconds in self.step_phases.items():
            if not np.isnan(seconds).all():
                step_phases[name] = np.asarray(seconds, dtype=np.float32)
        return {
            "loss": np.asarray(self.losses, dtype=np.float32),
            "step_seconds": np.asarray(self.step_seconds, dtype=np.float64),
            "step_phases": step_phases,
            "refilled_steps": list(self.refilled_steps),
            "interruptions": list(self.interruptions),
            "refused_checkpoints": list(self.refused_checkpoints),
            "unsaved": list(self.unsaved),
        }

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
