"""A driver below pynvml that speaks NVML's C interface, for machines without a GPU."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest
import torch

UUID = "01234567-89ab-cdef-0123-456789abcdef"


@dataclass
class FakeDriver:
    """What pynvml finds in place of libnvidia-ml: C functions that fill in what they are given and
    return a status.

    `values` holds the answers by the names of functions; an NVML error's number in their place is
    what they return, and of a list each call takes the next entry, the last one for ever. A function that
    is not there is one that this driver does not have.
    """

    values: dict[str, Any] = field(default_factory=dict)
    uuid: bytes = f"GPU-{UUID}".encode()
    open: int = 0  # how often it was initialized and not shut down
    processes: Sequence[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Keep lists of its own, of which entries are taken."""
        self.values = copy.deepcopy(self.values)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
        """Put it below pynvml, and have torch know its GPU."""
        monkeypatch.setattr(pynvml, "nvmlLib", self)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        properties = type("Properties", (), {"uuid": UUID})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        return self

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name not in self.values:
            raise AttributeError(name)

        def answer(_handle: Any, *arguments: Any) -> int:
            value, out = self.values[name], arguments[-1]._obj
            if isinstance(value, list):
                value = value.pop(0) if len(value) > 1 else value[0]
            if callable(value):
                value = value()
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
