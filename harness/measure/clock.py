"""Step times and what they went into: read from the device where there is one, otherwise from the monotonic clock."""

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
    """The parts of a step. `communication` is what ranks waited for one another and for the network, no overlap."""

    data_wait = 0
    host_to_device = 1
    forward = 2
    backward = 3
    communication = 4
    optimizer = 5


STEP_END = -1  # marks the end of a step, from where on the next one waits for its data


@dataclass(frozen=True)
class StepTimes:
    """One number a step, in seconds: from the end of the step before (or the start of the stretch) to its own end,
    and the part of it that went into each phase that was entered; the phases of a step add up to it."""

    steps: NDArray[np.float64]
    phases: dict[str, NDArray[np.float64]]


class StepClock(ABC):
    """Times the steps of a stretch; between stretches anything may happen untimed."""

    def __init__(self) -> None:
        self.running = False
        self._clear()

    def _clear(self) -> None:
        self._begun: list[int] = []  # a Phase, or STEP_END
        self._moments: list[Any] = []

    def start(self) -> None:
        """Begin a stretch; waits for the device."""
        self._wait()
        self._clear()
        self.running = True
        self.end_step()

    def enter(self, phase: Phase) -> None:
        """The time from now on (on a GPU: what is enqueued from now on) belongs to `phase`."""
        self._begun.append(phase)
        self._moments.append(self._now())

    def end_step(self) -> None:
        """The step is done; the wait for the next one's data begins."""
        self._begun.append(STEP_END)
        self._moments.append(self._now())

    @contextmanager
    def communicating(self) -> Iterator[None]:
        """The block is communication, wherever in a step it happens; outside a stretch it is nothing."""
        if not self.running:
            yield
            return
        before = self._begun[-1]
        self.enter(Phase.communication)
        yield
        self.enter(Phase.data_wait if before == STEP_END else Phase(before))

    def stop(self) -> StepTimes:
        """End the stretch and read its times; waits for the device."""
        self.running = False
        self._wait()
        seconds, begun = self._between(self._moments), np.asarray(self._begun[:-1])
        step = np.cumsum(begun == STEP_END) - 1
        phase = np.where(begun == STEP_END, Phase.data_wait, begun)
        phases = np.zeros((len(Phase), step[-1] + 1))
        np.add.at(phases, (phase, step), seconds)
        return StepTimes(
            phases.sum(axis=0), {Phase(code).name: phases[code] for code in np.unique(phase)}
        )

    @abstractmethod
    def _now(self) -> Any: ...

    @abstractmethod
    def _wait(self) -> None: ...

    @abstractmethod
    def _between(self, moments: list[Any]) -> NDArray[np.float64]: ...


class HostClock(StepClock):
    """The monotonic clock, for devices that work in step with the host."""

    _now = staticmethod(time.perf_counter_ns)

    def _wait(self) -> None:
        return

    def _between(self, moments: list[int]) -> NDArray[np.float64]:
        return np.diff(np.asarray(moments, dtype=np.int64)).astype(np.float64) / 1e9


class CudaClock(StepClock):
    """Events on the current stream: a wait for data counts as far as the device had nothing left to do."""

    def _now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _wait(self) -> None:
        torch.cuda.synchronize()

    def _between(self, moments: list[torch.cuda.Event]) -> NDArray[np.float64]:
        return np.asarray(
            [start.elapsed_time(end) / 1e3 for start, end in itertools.pairwise(moments)]
        )


def step_clock(device: torch.device) -> StepClock:
    return CudaClock() if device.type == "cuda" else HostClock()
