"""Measures how long each step takes and how its time divides into phases.

On a GPU the times come from events on its stream, elsewhere from the host's monotonic clock.
"""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


class Phase(IntEnum):
    """The phases of a step.

    `communication` is the time that a rank waits for other ranks and for the network. What overlaps
    with computation is not part of it.
    """

    data_wait = 0
    host_to_device = 1
    forward = 2
    backward = 3
    communication = 4
    optimizer = 5


# Recorded in place of a phase at the end of a step. From then on the next step waits for its data.
STEP_END = -1


# Of ten segments, one has its phases timed: a mark costs a small model on a GPU as much as a kernel.
SEGMENTS_PER_SAMPLE = 10


@dataclass(frozen=True)
class SegmentTimes:
    """The durations of the steps of a segment and of their phases, in seconds.

    A step lasts from the end of the step before (the first: from the start of the segment) to its
    own end. Its phases add up to it, in a segment whose phases are timed.
    """

    steps: NDArray[np.float64]  # shape (steps,)
    # By name of the phase, shape (steps,); NaN in a segment that did not enter it, or times none.
    phases: dict[str, NDArray[np.float64]]


class StepClock(ABC):
    """Times the steps of a segment of training; between segments anything may happen untimed.

    While a segment runs, a change of phase only records its code and a timestamp: two appends to
    lists. Everything else is computed in `stop`, so that measuring costs next to nothing.
    """

    def __init__(self) -> None:
        self.running = False
        self.times_phases = False  # in the segment that runs
        self._segments = 0  # begun so far
        # Entry i says what began at timestamp i and lasted until timestamp i + 1.
        self._codes: list[int] = []  # a Phase, or STEP_END
        self._timestamps: list[Any] = []

    def start(self, segments_left: float = 0.0) -> None:
        """Begin a segment, once the device has finished its work.

        About so many segments of the trial are left, with this one. Its phases are timed in one
        segment of SEGMENTS_PER_SAMPLE, and in all of a trial that has fewer.
        """
        is_short = self._segments + segments_left < SEGMENTS_PER_SAMPLE
        self.times_phases = is_short or self._segments % SEGMENTS_PER_SAMPLE == 0
        self._segments += 1
        self._wait_for_device()
        self._codes, self._timestamps = [], []
        self.running = True
        self.end_step()  # the first step begins where a step before it would have ended

    def enter(self, phase: Phase) -> None:
        """Begin a phase. On a GPU it consists of the work that is enqueued from now on."""
        if self.times_phases:
            self._codes.append(phase)
            self._timestamps.append(self._now())

    def end_step(self) -> None:
        """End a step; the wait for the data of the next one begins."""
        self._codes.append(STEP_END)
        self._timestamps.append(self._now())

    def mark(self) -> int:
        """Return a mark of this moment, which may turn out to be the end of a step."""
        self._codes.append(Phase.data_wait)
        self._timestamps.append(self._now())
        return len(self._codes) - 1

    def end_step_at(self, mark: int) -> None:
        """End a step at a mark of the segment that runs."""
        self._codes[mark] = STEP_END

    @contextmanager
    def communicating(self) -> Iterator[None]:
        """Count the time inside as communication, then return to the phase before.

        Outside a segment whose phases are timed, as while evaluating, it does nothing.
        """
        if not self.times_phases:
            yield
            return
        interrupted = self._codes[-1]
        self.enter(Phase.communication)
        yield
        self.enter(Phase.data_wait if interrupted == STEP_END else Phase(interrupted))

    def stop(self) -> SegmentTimes:
        """End the segment, wait for the device, and return the times of the segment's steps."""
        are_phases_timed, self.times_phases = self.times_phases, False
        self.running = False
        self._wait_for_device()
        # What follows the last end of a step, as another optimizer's may, belongs to none.
        last_end = len(self._codes) - self._codes[::-1].index(STEP_END)
        seconds = self._seconds_between(self._timestamps[:last_end])
        codes = np.asarray(self._codes[: last_end - 1])  # the last entry begins nothing
        is_step_end = codes == STEP_END
        step_index = np.cumsum(is_step_end) - 1
        entered = np.where(is_step_end, Phase.data_wait, codes)
        phases = np.zeros((len(Phase), step_index[-1] + 1))
        # A step may enter a phase several times. `np.add.at` adds all its parts, where an
        # assignment by index would keep only the last.
        np.add.at(phases, (entered, step_index), seconds)
        steps = phases.sum(axis=0)
        for phase in Phase:
            if not are_phases_timed or not (entered == phase).any():
                phases[phase] = np.nan
        return SegmentTimes(steps, {phase.name: phases[phase] for phase in Phase})

    @abstractmethod
    def _now(self) -> Any:
        """Return a timestamp, as cheaply as possible."""

    @abstractmethod
    def _wait_for_device(self) -> None:
        """Block until the device has finished all work that was enqueued."""

    @abstractmethod
    def _seconds_between(self, timestamps: list[Any]) -> NDArray[np.float64]:
        """Return the seconds from each timestamp to the next, shape (timestamps - 1,)."""


class HostClock(StepClock):
    """The monotonic clock of the host, for devices that work synchronously with it."""

    _now = staticmethod(time.perf_counter_ns)

    def _wait_for_device(self) -> None:
        return

    def _seconds_between(self, timestamps: list[int]) -> NDArray[np.float64]:
        nanoseconds = np.asarray(timestamps, dtype=np.int64)
        return np.diff(nanoseconds).astype(np.float64) / 1e9


class CudaClock(StepClock):
    """CUDA events on the stream that is current when a segment begins.

    A GPU runs behind the host, so the host's clock would time how long work takes to enqueue. An
    event gets its time when the stream reaches it. `elapsed_time` is defined only once both events
    have been reached, and to wait for them in every step would empty the stream. So all events are
    read in `stop`, after the loop, and recorded again in the next segment.

    A wait for data counts as far as the device had no work left in the meantime.
    """

    def __init__(self) -> None:
        super().__init__()
        self._events: list[torch.cuda.Event] = []  # of the longest segment; all segments use them
        self._stream: torch.cuda.Stream | None = None  # before the first segment: the current one

    def start(self, segments_left: float = 0.0) -> None:
        # Looked up once, because that takes longer than to record an event.
        self._stream = torch.cuda.current_stream()
        super().start(segments_left)

    def _now(self) -> torch.cuda.Event:
        used = len(self._timestamps)
        if used == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        event = self._events[used]
        event.record(self._stream)
        return event

    def _wait_for_device(self) -> None:
        torch.cuda.synchronize()

    def _seconds_between(self, timestamps: list[torch.cuda.Event]) -> NDArray[np.float64]:
        # `elapsed_time` is in milliseconds.
        return np.asarray(
            [start.elapsed_time(end) / 1e3 for start, end in itertools.pairwise(timestamps)]
        )


def step_clock(device: torch.device) -> StepClock:
    """Return the clock for a device."""
    return CudaClock() if device.type == "cuda" else HostClock()
