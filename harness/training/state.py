"""The state of a trial at one rank: its measurements so far, and how far it has come.

A checkpoint contains the whole of it, but for the numbers of each step, which are in a file next to it
(`harness.training.series`). So a resumed trial's record tells of all its attempts. A
failed trial's record has what was in it when the trial failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from harness.records.record import (
    Compiled,
    Evaluation,
    Interruption,
    Saves,
    StepFingerprint,
)
from harness.training.order import OrderDigest


@dataclass(frozen=True, kw_only=True)
class Series:
    """The numbers of each step, as long as a trial has steps."""

    losses: list[float]
    step_seconds: list[float]
    step_phases: dict[str, list[float]]


@dataclass
class TrainingState:
    """Progress and measurements of a trial at one rank, over all of its attempts."""

    step: int = 0  # optimizer steps done
    losses: list[float] = field(default_factory=list)  # of each step, this rank's mean
    step_seconds: list[float] = field(default_factory=list)  # of each step
    # The parts of each step in seconds, by the name of the phase.
    step_phases: dict[str, list[float]] = field(default_factory=dict)
    # Steps, counted from 0, for which a loader may have fetched in an untimed pause.
    refilled_steps: list[int] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    order_digest: OrderDigest = field(default_factory=OrderDigest)  # over the steps done
    loader_workers: int = 0  # how many were seen to deliver batches
    fingerprints: list[StepFingerprint] = field(default_factory=list)  # of the steps chosen
    interruptions: list[Interruption] = field(default_factory=list)
    # Checkpoints that attempts did not resume from, and why, a line each; at rank 0 alone.
    refused_checkpoints: list[str] = field(default_factory=list)
    saves: Saves | None = None  # at intervals, and what could not be saved; None without either
    # Seconds by the name of the phase: data, build, compile, loader, train, evaluate, ...
    phases: dict[str, float] = field(default_factory=dict)
    compiled: Compiled | None = None  # by the last attempt that trained; None for eager
    # Moments in seconds since the epoch. Those of epochs are there at rank 0 alone; the present epoch
    # has no end yet.
    began_at: float = field(default_factory=time.time)  # of the process
    training_began_at: float | None = None
    epoch_began_at: list[float] = field(default_factory=list)
    epoch_ended_at: list[float] = field(default_factory=list)
    # Not part of a checkpoint: the steps done by earlier attempts, where this one began, and whether
    # the rank trains at this moment, which other threads read.
    resumed_at: int = 0
    in_step: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain values, without the numbers of each step."""
        content = asdict(replace(self, losses=[], step_seconds=[], step_phases={}))
        for name in ("losses", "step_seconds", "step_phases", "resumed_at", "in_step"):
            del content[name]
        return content

    def resume_from(self, content: Mapping[str, Any], series: Series) -> None:
        """Take over the state that `to_dict` returned in an earlier attempt, and the numbers of its steps.

        Seconds that this attempt has spent already, reading data for example, are added to its
        phases.
        """
        phases_of_this_attempt = self.phases
        for name, value in content.items():
            setattr(self, name, value)
        self.losses, self.step_seconds = series.losses, series.step_seconds
        self.step_phases = series.step_phases
        self.evaluations = [Evaluation(**entry) for entry in content["evaluations"]]
        self.interruptions = [Interruption(**entry) for entry in content["interruptions"]]
        self.fingerprints = [StepFingerprint(**entry) for entry in content["fingerprints"]]
        self.order_digest = OrderDigest(**content["order_digest"])
        if content["compiled"] is not None:
            self.compiled = Compiled(**content["compiled"])
        if content["saves"] is not None:
            self.saves = Saves(**content["saves"])
        for phase, seconds in phases_of_this_attempt.items():
            self.add_seconds(phase, seconds)
        self.resumed_at = self.step

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Add to the seconds that a phase of the trial has taken."""
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds

    def note_unsaved(self, line: str) -> None:
        """Note that something could not be saved, in the rank's log too."""
        print(line, flush=True)
        saves = self.saves or Saves()
        self.saves = replace(saves, failed=[*saves.failed, line])

    @contextmanager
    def timed(self, phase: str) -> Iterator[Callable[[], float]]:
        """Add the seconds of the `with` block to a phase; nothing is added if the block raises.

        Yields a function that returns the seconds so far.
        """
        start = time.perf_counter()

        def elapsed() -> float:
            return time.perf_counter() - start

        yield elapsed
        self.add_seconds(phase, elapsed())
