"""GPUs for machines without one: a scripted device, and a driver below pynvml that speaks NVML's C
interface.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml

from harness.measure.gpu import NvmlGpu
from harness.measure.host import CoreUse, Counters, ThisHost

UUID = "01234567-89ab-cdef-0123-456789abcdef"


def script(values: Iterable[Any]) -> Iterator[Any]:
    """One after the other, and the last one for ever."""
    last = None
    for last in values:
        yield last
    yield from itertools.repeat(last)


class FakeGpu(NvmlGpu):
    """Says what it was told to: each call takes the next entry of its script; an exception there is
    raised.
    """

    def __init__(
        self,
        *,
        readings: Sequence[Any] = ({},),
        energy: Sequence[Any] = (None,),
        throttled: Sequence[Any] = ((),),
        pids: Sequence[Any] = ((),),
        temperatures: Sequence[Any] = (None,),
    ) -> None:
        self._temperatures = script(temperatures)
        self._readings, self._energy = script(readings), script(energy)
        self._throttled, self._pids = script(throttled), script(pids)
        self.closed = False

    def gauges(self) -> dict[str, float]:
        answer: dict[str, float] = _said(self._readings)
        return answer

    def celsius(self) -> float | None:
        temperature: float | None = _said(self._temperatures)
        return temperature

    def energy_millijoules(self) -> int | None:
        counter: int | None = _said(self._energy)
        return counter

    def throttle_reasons(self) -> Collection[str] | None:
        reasons: Collection[str] | None = _said(self._throttled)
        return reasons

    def compute_pids(self) -> Collection[int] | None:
        pids: Collection[int] | None = _said(self._pids)
        return pids

    def close(self) -> None:
        self.closed = True


class FakeHost(ThisHost):
    """Counters by script, and processes by name: those without one are of the trial."""

    def __init__(
        self, counters: Sequence[Any] = (Counters(),), names: Mapping[int, str] | None = None
    ) -> None:
        self._counters, self.names = script(counters), names or {}

    def gauges(self) -> dict[str, float]:
        return {"load_per_core": 0.5}

    def counters(self) -> Counters:
        answer: Counters = _said(self._counters)
        return answer

    def core_use(self) -> CoreUse:
        return CoreUse(wall=0.0, host=0.0, waited={}, cpu={})

    def foreign_process(self, pid: int) -> str | None:
        return f"pid {pid} {self.names[pid]}" if pid in self.names else None

    def close(self) -> None: ...


def _said(values: Iterator[Any]) -> Any:
    value = next(values)
    if isinstance(value, Exception):
        raise value
    return value


@dataclass
class FakeDriver:
    """What pynvml finds in place of libnvidia-ml: C functions that fill in what they are given and
    return a status.

    `values` holds the answers by the names of functions; an NVML error's number in their place is
    what they return. A function that is not there is one that this driver does not have.
    """

    values: dict[str, Any]
    uuid: bytes = f"GPU-{UUID}".encode()
    open: int = 0  # how often it was initialized and not shut down
    processes: Sequence[int] = field(default_factory=list)

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name not in self.values:
            raise AttributeError(name)

        def answer(_handle: Any, *arguments: Any) -> int:
            value, out = self.values[name], arguments[-1]._obj
            if isinstance(value, Failing):
                return value.status
            for part, content in value.items() if isinstance(value, dict) else [("value", value)]:
                setattr(out, part, content)
            return int(pynvml.NVML_SUCCESS)

        return answer

    def nvmlInitWithFlags(self, _flags: int) -> int:  # noqa: N802
        self.open += 1
        return int(pynvml.NVML_SUCCESS)

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.open -= 1
        return int(pynvml.NVML_SUCCESS)

    def nvmlDeviceGetHandleByUUID(self, uuid: ctypes.c_char_p, _handle: Any) -> int:  # noqa: N802
        return int(pynvml.NVML_SUCCESS if uuid.value == self.uuid else pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, _handle: Any, count: Any, places: Any) -> int:  # noqa: N802
        if places is None and self.processes:
            count._obj.value = len(self.processes)
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        count._obj.value = len(self.processes)
        for entry, pid in zip(places or (), self.processes, strict=False):
            entry.pid = pid
        return int(pynvml.NVML_SUCCESS)


@dataclass(frozen=True)
class Failing:
    """The status of a function that fails: one of pynvml's NVML_ERROR_…"""

    status: int
