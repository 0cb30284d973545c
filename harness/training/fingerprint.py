"""What identifies the thing that a trial computed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


def whole(tensor: Tensor) -> Tensor:
    """The full tensor on the CPU; every rank of a sharded one must ask."""
    full = getattr(
        tensor, "full_tensor", None
    )  # a DTensor's, told without importing it: a second of start-up
    return (full() if full is not None else tensor).detach().cpu()


def whole_state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and persistent buffers by name, unsharded; every rank must take part."""
    for name, value in model.state_dict().items():
        yield name, whole(value)


def digest_parameters(model: nn.Module) -> str:
    """SHA-256 over names, types, shapes and bytes of the full parameters, in the order of their names."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        # A copy, because numpy fixes the size of the memory it looks at, and FSDP2 frees its own by resizing it.
        full = whole(parameter).clone(memory_format=torch.contiguous_format)
        digest.update(f"{name}\0{full.dtype}\0{tuple(full.shape)}\0".encode())
        digest.update(full.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
