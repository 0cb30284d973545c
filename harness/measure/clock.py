"""Step times: read from the device where there is one, otherwise from the monotonic clock."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class StepTimes:
    """One number a step, in seconds: from the end of the step before (or the start of the stretch) to its own end,
    and the part of it in which the loop waited for data."""

    steps: list[float]
    waits: list[float]


class StepClock(Protocol):
    """Times the steps of a stretch; between stretches anything may happen untimed."""

    def start(self) -> None:
        """Begin a stretch; waits for the device."""

    def fetched(self) -> None:
        """The step's batch has come."""

    def lap(self) -> None:
        """The step is done (on a GPU: enqueued)."""

    def stop(self) -> StepTimes:
        """End the stretch and read its times; waits for the device."""
        ...


class HostClock:
    """The monotonic clock, for devices that work in step with the host."""

    def start(self) -> None:
        self._ends = [time.perf_counter_ns()]
        self._fetches: list[int] = []

    def fetched(self) -> None:
        self._fetches.append(time.perf_counter_ns())

    def lap(self) -> None:
        self._ends.append(time.perf_counter_ns())

    def stop(self) -> StepTimes:
        steps = [(end - before) / 1e9 for before, end in itertools.pairwise(self._ends)]
        waits = [(fetch - before) / 1e9 for before, fetch in zip(self._ends, self._fetches, strict=False)]
        return StepTimes(steps, waits)


class CudaClock(HostClock):
    """Events on the current stream for the steps; the host's clock for the waits, which are the host's."""

    def start(self) -> None:
        torch.cuda.synchronize()
        self._events = [self._event()]
        super().start()

    def lap(self) -> None:
        self._events.append(self._event())
        super().lap()

    def stop(self) -> StepTimes:
        torch.cuda.synchronize()
        waits = super().stop().waits
        return StepTimes([start.elapsed_time(end) / 1e3 for start, end in itertools.pairwise(self._events)], waits)

    @staticmethod
    def _event() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def step_clock(device: torch.device) -> StepClock:
    return CudaClock() if device.type == "cuda" else HostClock()
