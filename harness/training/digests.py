"""Digests that identify the model that a trial ended with: parameters, buffers and other state.

Two trials with the same digest have computed the same thing to the last bit, at any number of ranks
and under any strategy: digests are over unsharded parameters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.core.errors import NotApplied
from harness.training.ranks import gather
from workloads.base import Workload

PLAIN_TYPES = (bool, int, float, str, bytes, type(None))


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the unsharded tensor on the CPU; every rank of a sharded tensor must call this."""
    # Only a DTensor has this method. To ask for the class would import it: a second of start-up.
    gather_shards = getattr(tensor, "full_tensor", None)
    if gather_shards is not None:
        tensor = gather_shards()
    return tensor.detach().cpu()


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a DTensor, and any other tensor as it is; they share memory."""
    to_local: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def digest_model(model: nn.Module, state: str | None) -> str:
    """Return the digest of a model: parameters, buffers and `state`, the digest of the workload's own.

    Without buffers and state it is the digest of the parameters alone. A rank may have buffers of its
    own, such as running means; those of rank 0 are the model's. Every rank must take part; only
    rank 0's digest is that of all ranks.
    """
    digests = [digest_tensors(sorted(model.named_parameters()))]
    buffers = sorted(model.named_buffers())  # those that are in no state dict count too
    if buffers:
        digests.append(digest_tensors(buffers))
    # One where all ranks have the same state, which then does not depend on how many they are.
    states = [digest for digest in gather(state) if digest is not None]
    digests += states[:1] if len(set(states)) == 1 else states
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def digest_tensors(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the SHA-256 of names, types, shapes and bytes; every rank of sharded ones must take part."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name}\0".encode())
        add_tensor(digest.update, full_tensor(tensor))
    return digest.hexdigest()


def add_tensor(update: Callable[[bytes], object], tensor: Tensor) -> None:
    """Add type, shape and bytes of a tensor on the CPU to a digest; a sparse one counts as dense."""
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    # A copy, because an array that shares a tensor's memory fixes the size of that memory, and
    # FSDP2 frees its parameters by resizing theirs to nothing.
    values = tensor.clone(memory_format=torch.contiguous_format)
    update(f"{values.dtype}\0{tuple(values.shape)}\0".encode())
    update(values.reshape(-1).view(torch.uint8).numpy().tobytes())


# The state that training changes in a workload, such as a moving average of the weights: it is saved in
# checkpoints and digested, as the model and the optimizer are.


class WorkloadState:
    """The state of one rank's workload; every rank must call what saves or reads it."""

    def __init__(self, workload: Workload) -> None:
        """Raise NotApplied if the workload's state can't be saved, or can't be loaded again."""
        self.workload = workload
        has_load = type(workload).load_state_dict is not Workload.load_state_dict
        if self.save() and not has_load:
            name = type(workload).__name__
            raise NotApplied(f"{name} has state_dict(); needed: load_state_dict(state) too")

    def save(self) -> dict[str, Any]:
        """Return the state as plain values and unsharded tensors on the CPU."""
        path = f"{type(self.workload).__name__}.state_dict()"
        plain: dict[str, Any] = plain_copy(
            self.workload.state_dict(), path, lambda tensor: full_tensor(tensor).clone()
        )
        return plain

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state that `save` returned."""
        if state:
            self.workload.load_state_dict(state)

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Return the values of the state by name, other values than tensors as tensors."""
        return list(_named_tensors("", self.save()))

    def digest(self) -> str | None:
        """Return the SHA-256 of the state, None if there is none."""
        tensors = self.tensors()
        return digest_tensors(tensors) if tensors else None


def plain_copy(value: Any, path: str, copy_tensor: Callable[[Tensor], Any]) -> Any:
    """Return a copy of a state as what `torch.load` reads without running any code.

    `path` is where the value is in the state. Raises NotApplied for other types.
    """
    if isinstance(value, Tensor):
        return copy_tensor(value)
    if isinstance(value, dict):
        return {key: plain_copy(value[key], f"{path}[{key!r}]", copy_tensor) for key in value}
    if type(value) in (list, tuple):
        items = enumerate(value)
        return type(value)(plain_copy(item, f"{path}[{n}]", copy_tensor) for n, item in items)
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in PLAIN_TYPES:
        return value
    raise NotApplied(
        f"{path}: found {type(value).__name__}; allowed: tensors, numbers, texts, None, and lists,"
        " tuples and dicts of them"
    )


def _named_tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield each value of a state, as `average['weight']` or `queue[0]`."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _named_tensors(f"{name}[{key!r}]" if name else str(key), item)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _named_tensors(f"{name}[{number}]", item)
    else:
        yield name, torch.frombuffer(bytearray(repr(value).encode()), dtype=torch.uint8)
