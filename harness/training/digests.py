"""Digests that identify the model that a trial ended with: parameters, buffers and other state.

Two trials with the same digest have computed the same thing to the last bit, at any number of ranks
and under any strategy: digests are over unsharded parameters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.core.errors import NotApplied
from harness.training.ranks import gather, generator_states
from workloads.base import Workload

PLAIN_TYPES = (bool, int, float, str, bytes, type(None))
State = dict[str, Any]  # of anything, by name: tensors, plain values, and containers of them
Named = Iterable[tuple[str, Tensor]]  # tensors and what their owner calls them


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the unsharded tensor on the CPU; every rank of a sharded tensor must call this."""
    # Only a DTensor has this method. To ask for the class would import it: a second of start-up.
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    return tensor.detach().cpu()


def dense_copy(tensor: Tensor) -> Tensor:
    """Return a dense, contiguous copy of the unsharded tensor on the CPU; see `full_tensor`."""
    return full_tensor(tensor).to_dense().clone(memory_format=torch.contiguous_format)


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a DTensor, and any other tensor as it is; they share memory."""
    to_local: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def digest_model(model: nn.Module, workload: Workload) -> str:
    """Return the digest of a model: of its parameters, of its buffers and of the workload's own state.

    Without buffers and state it is the digest of the parameters alone. A rank may have buffers of its
    own, such as running means; those of rank 0 are the model's. Every rank must take part; only
    rank 0's digest is that of all ranks.
    """
    digests = [digest_tensors(sorted(model.named_parameters()))]
    buffers = sorted(model.named_buffers())  # those that are in no state dict count too
    if buffers:
        digests.append(digest_tensors(buffers))
    values = list(named_tensors(workload_state(workload)))
    state = digest_tensors(values) if values else None
    # One where all ranks have the same state, which then does not depend on how many they are.
    states = [digest for digest in gather(state) if digest is not None]
    digests += states[:1] if len(set(states)) == 1 else states
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def digest_tensors(tensors: Named) -> str:
    """Return the SHA-256 of names, types, shapes and bytes; every rank of sharded ones must take part."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name}\0".encode())
        add_tensor(digest.update, tensor)
    return digest.hexdigest()


def add_tensor(update: Callable[[bytes], object], tensor: Tensor) -> None:
    """Add type, shape and bytes of a tensor to a digest; a sparse one counts as dense."""
    # A copy, because an array that shares a tensor's memory fixes the size of that memory, and
    # FSDP2 frees its parameters by resizing theirs to nothing.
    values = dense_copy(tensor)
    update(f"{values.dtype}\0{tuple(values.shape)}\0".encode())
    update(values.reshape(-1).view(torch.uint8).numpy().tobytes())


def workload_state(workload: Workload) -> State:
    """Return the state that training changes in a workload, such as a moving average of the weights.

    It is saved in checkpoints and digested, as the model and the optimizer are: plain values, and unsharded
    tensors on the CPU. Every rank must call this. Raises NotApplied for a state that can't be saved or
    loaded again.
    """
    name = type(workload).__name__
    state: State = plain_copy(workload.state_dict(), f"{name}.state_dict()", full_tensor)
    if state and type(workload).load_state_dict is Workload.load_state_dict:
        raise NotApplied(f"{name} has state_dict(); needed: load_state_dict(state) too")
    return state


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


def named_tensors(value: Any, name: str = "") -> Named:
    """Yield each value of a state as a tensor, by names such as `average['weight']` or `queue[0]`."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from named_tensors(item, f"{name}[{key!r}]" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from named_tensors(item, f"{name}[{number}]")
    else:
        yield name, _as_tensor(value)


def random_states(device: torch.device) -> Named:
    """Yield the state of each generator that code on this device draws from as a tensor, by name."""
    for name, state in generator_states(device).items():
        yield name, _as_tensor(state)


def _as_tensor(value: Any) -> Tensor:
    """Return a tensor as it is, and of anything else the bytes that Python writes it as."""
    if isinstance(value, Tensor):
        return value
    return torch.frombuffer(bytearray(repr(value).encode()), dtype=torch.uint8)
