"""What identifies the parameters that a trial ended with.

Two trials with the same digest have computed the same thing to the last bit, at any number of ranks
and under any strategy: digests are over unsharded parameters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the unsharded tensor on the CPU; every rank of a sharded tensor must call this."""
    # Only a DTensor has this method. To ask for the class would import it: a second of start-up.
    gather_shards = getattr(tensor, "full_tensor", None)
    if gather_shards is not None:
        tensor = gather_shards()
    return tensor.detach().cpu()


def full_state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and persistent buffers by name, unsharded; every rank must take part."""
    for name, value in model.state_dict().items():
        yield name, full_tensor(value)


def digest_parameters(model: nn.Module) -> str:
    """Return the SHA-256 of the full parameters, as hexadecimal digits; every rank must take part.

    It covers names, types, shapes and bytes, in the order of the names.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name}\0".encode())
        add_tensor(digest.update, full_tensor(parameter))
    return digest.hexdigest()


def add_tensor(update: Callable[[bytes], object], tensor: Tensor) -> None:
    """Add type, shape and bytes of a tensor on the CPU to a digest."""
    # A copy, because an array that shares a tensor's memory fixes the size of that memory, and
    # FSDP2 frees its parameters by resizing theirs to nothing.
    values = tensor.clone(memory_format=torch.contiguous_format)
    update(f"{values.dtype}\0{tuple(values.shape)}\0".encode())
    update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
