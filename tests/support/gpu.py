"""GPUs for machines without one: a scripted device, and a driver below pynvml that speaks NVML's C
interface.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml

from harness.measure.gpu import THROTTLING, NvmlGpu

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
        joules: Sequence[Any] = (None,),
        throttled: Sequence[Any] = (None,),
        processes: Sequence[Any] = (None,),
    ) -> None:
        self._readings, self._joules = script(readings), script(joules)
        self._throttled, self._processes = script(throttled), script(processes)
        self.closed = False

    def gauges(self) -> dict[str, float]:
        answer: dict[str, float] = _said(self._readings)
        return answer

    def joules(self) -> float | None:
        counter: float | None = _said(self._joules)
        return counter

    def throttle_reasons(self) -> dict[str, bool] | None:
        reasons: set[str] | None = _said(self._throttled)
        return None if reasons is None else {name: name in reasons for name in THROTTLING}

    def foreign_processes(self) -> set[str] | None:
        processes: set[str] | None = _said(self._processes)
        return processes

    def close(self) -> None:
        self.closed = True


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
