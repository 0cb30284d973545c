"""Step times: read from the device where there is one, otherwise from the monotonic clock."""

from __future__ import annotations

import time
from typing import Protocol

import torch


class StepClock(Protocol):
    """Times steps in stretches; between stretches anything may happen untimed.

    Both lists hold one number a step, in seconds: `steps` from the end of the step before (or the start of the
    stretch) to its own end, `waits` the part of it in which the loop waited for data.
    """

    steps: list[float]
    waits: list[float]

    def start(self) -> None:
        """Begin a stretch."""

    def fetched(self) -> None:
        """The step's batch has come."""

    def lap(self) -> float:
        """The step is done (on a GPU: enqueued). Returns the seconds since the stretch began."""
        ...

    def stop(self) -> None:
        """End the stretch and read its times; waits for the device."""


class HostClock:
    """The monotonic clock, for devices that work in step with the host."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.waits: list[float] = []
        self._marks: list[int] = []

    def start(self) -> None:
        self._marks = [time.perf_counter_ns()]

    def fetched(self) -> None:
        self._marks.append(time.perf_counter_ns())

    def lap(self) -> float:
        now = time.perf_counter_ns()
        self._marks.append(now)
        return (now - self._marks[0]) / 1e9

    def stop(self) -> None:
        ends, fetches = self._marks[::2], self._marks[1::2]
        self.steps += [(end - before) / 1e9 for before, end in zip(ends, ends[1:], strict=False)]
        self.waits += [(fetch - before) / 1e9 for before, fetch in zip(ends, fetches, strict=False)][: len(ends) - 1]


class CudaClock(HostClock):
    """Events on the current stream for the steps; the host's clock for the waits, which are the host's."""

    def __init__(self) -> None:
        super().__init__()
        self._events: list[torch.cuda.Event] = []

    def start(self) -> None:
        torch.cuda.synchronize()
        self._events = [self._event()]
        super().start()

    def lap(self) -> float:
        self._events.append(self._event())
        return super().lap()

    def stop(self) -> None:
        torch.cuda.synchronize()
        before = len(self.steps)
        super().stop()
        pairs = zip(self._events, self._events[1:], strict=False)
        self.steps[before:] = [start.elapsed_time(end) / 1e3 for start, end in pairs]

    @staticmethod
    def _event() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def step_clock(device: torch.device) -> StepClock:
    return CudaClock() if device.type == "cuda" else HostClock()
