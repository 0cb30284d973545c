"""What identifies the thing that a trial computed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def whole(tensor: Tensor) -> Tensor:
    """The full tensor on the CPU; every rank of a sharded one must ask."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


def whole_state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and persistent buffers by name, unsharded; every rank must take part."""
    for name, value in model.state_dict().items():
        yield name, whole(value)


def digest_parameters(model: nn.Module) -> str:
    """SHA-256 over names, types, shapes and bytes of the full parameters, in the order of their names."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        full = whole(parameter).contiguous()
        digest.update(f"{name}\0{full.dtype}\0{tuple(full.shape)}\0".encode())
        digest.update(
            memoryview(full.view(torch.uint8).numpy() if full.dim() else full.reshape(1).view(torch.uint8).numpy())
        )
    return digest.hexdigest()
