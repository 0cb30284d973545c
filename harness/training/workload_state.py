"""The state that training changes in a workload, such as a moving average of the weights.

It is saved in checkpoints and digested, as the model and the optimizer are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from harness.core.errors import NotApplied
from harness.training.fingerprint import digest_tensors, full_tensor
from workloads.base import Workload

MOST_OF_INT64 = 2**63
PLAIN_TYPES = (bool, int, float, str, type(None))


class WorkloadState:
    """The state of one rank's workload."""

    def __init__(self, workload: Workload) -> None:
        """Raise NotApplied if the workload's state can't be saved, or can't be loaded again."""
        self.workload = workload
        has_load = type(workload).load_state_dict is not Workload.load_state_dict
        if self.save() and not has_load:
            name = type(workload).__name__
            raise NotApplied(f"{name} has state_dict(); needed: load_state_dict(state) too")

    def save(self) -> dict[str, Any]:
        """Return the state as plain values and unsharded tensors on the CPU.

        Every rank must call this.
        """
        name = f"{type(self.workload).__name__}.state_dict()"
        plain: dict[str, Any] = _to_plain(self.workload.state_dict(), name)
        return plain

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state that `save` returned."""
        if state:
            self.workload.load_state_dict(state)

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Return the values of the state by name, other values than tensors as tensors.

        Every rank must call this.
        """
        return list(_named_tensors("", self.save()))

    def digest(self) -> str | None:
        """Return the SHA-256 of the state, None if there is none; every rank must call this."""
        tensors = self.tensors()
        return digest_tensors(tensors) if tensors else None


def _to_plain(value: Any, path: str) -> Any:
    """Return a state with copies of its tensors, unsharded; raises NotApplied for other types.

    `path` is where the value is in the state. Checkpoints are loaded without running any code, and so
    contain plain types only.
    """
    if isinstance(value, torch.Tensor):
        return full_tensor(value).clone()
    if isinstance(value, dict):
        return {key: _to_plain(value[key], f"{path}[{key!r}]") for key in value}
    if type(value) in (list, tuple):
        return type(value)(_to_plain(item, f"{path}[{n}]") for n, item in enumerate(value))
    if type(value) in PLAIN_TYPES:
        return value
    raise NotApplied(
        f"{path}: found {type(value).__name__}; allowed: tensors, numbers, texts, None, and lists,"
        " tuples and dicts of them"
    )


def _named_tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each value of a state, as `average['weight']` or `queue[0]`."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _named_tensors(f"{name}[{key!r}]" if name else str(key), item)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _named_tensors(f"{name}[{number}]", item)
    elif isinstance(value, bool | int | float) and abs(value) < MOST_OF_INT64:
        yield name, torch.tensor(value, dtype=None if isinstance(value, int) else torch.float64)
    else:
        yield name, torch.frombuffer(bytearray(repr(value).encode()), dtype=torch.uint8)
