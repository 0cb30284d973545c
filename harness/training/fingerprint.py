"""Digests that identify the model that a trial ended with: parameters, buffers and other state.

Two trials with the same digest have computed the same thing to the last bit, at any number of ranks
and under any strategy: digests are over unsharded parameters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.measure.communication import all_gather_single

GATHERED_BYTES = 2**26  # of unsharded tensors, about, that are gathered at once


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the unsharded tensor on the CPU; every rank of a sharded tensor must call this."""
    # Only a DTensor has this method. To ask for the class would import it: a second of start-up.
    gather_shards = getattr(tensor, "full_tensor", None)
    if gather_shards is not None:
        tensor = gather_shards()
    return tensor.detach().cpu()


def full_tensors(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors unsharded on the CPU, with their names; every rank must take part.

    Shards are gathered many at once: torch's own `full_tensor` takes a millisecond for each.
    """
    pending: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in tensors:
        pending.append((name, tensor))
        size += tensor.numel() * tensor.element_size()
        if size > GATHERED_BYTES:
            yield from _gather_together(pending)
            pending, size = [], 0
    yield from _gather_together(pending)


def _gather_together(tensors: Sequence[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors unsharded; those that are sharded alike are gathered by one collective."""
    alike: dict[Any, dict[str, Any]] = {}
    for name, tensor in tensors:
        kind = _kind_of_shards(tensor)
        if kind is None:
            yield name, full_tensor(tensor)
        else:
            alike.setdefault(kind, {})[name] = tensor
    for (group, _), sharded in alike.items():
        yield from _gather_rows(group, sharded)


def _kind_of_shards(tensor: Any) -> tuple[dist.ProcessGroup, torch.dtype] | None:
    """Return group and type of a tensor whose rows are sharded over one group, None for all others.

    Other groups may have replicas of it.
    """
    placements: Any = getattr(tensor, "placements", ())
    sharding = [number for number, kind in enumerate(placements) if not kind.is_replicate()]
    if len(sharding) != 1 or not placements[sharding[0]].is_shard(0):
        return None
    if type(placements[sharding[0]]).__name__ != "Shard":  # a strided one has another order of rows
        return None
    return tensor.device_mesh.get_group(sharding[0]), tensor.dtype


def _gather_rows(
    group: dist.ProcessGroup, sharded: Mapping[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors whose rows the ranks share out, unsharded on the CPU.

    A rank has as many rows as `torch.chunk` gives it, and the last ranks may have none.
    """
    ranks = group.size()
    padded = []
    for tensor in sharded.values():
        local = tensor.to_local().detach()
        rows = -(-len(tensor) // ranks)
        buffer = local.new_zeros((rows, *tensor.shape[1:]))
        buffer[: len(local)] = local
        padded.append(buffer.reshape(-1))
    flat = torch.cat(padded)
    gathered = flat.new_empty(ranks * len(flat))
    all_gather_single(gathered, flat, group=group)
    columns = gathered.view(ranks, -1).cpu()
    start = 0
    for (name, tensor), buffer in zip(sharded.items(), padded, strict=True):
        part = columns[:, start : start + len(buffer)]
        start += len(buffer)
        yield name, part.reshape(-1, *tensor.shape[1:])[: len(tensor)]


def digest_parameters(model: nn.Module) -> str:
    """Return the SHA-256 of the full parameters, as hexadecimal digits; every rank must take part.

    It covers names, types, shapes and bytes, in the order of the names.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name}\0".encode())
        add_tensor(digest.update, full_tensor(parameter))
    return digest.hexdigest()


def digest_buffers(model: nn.Module) -> str | None:
    """Return the SHA-256 of this rank's buffers, None for a model without any.

    Buffers that are in no state dict count too. A rank may have buffers of its own, such as running
    means; those of rank 0 are the model's.
    """
    buffers = sorted(model.named_buffers())
    if not buffers:
        return None
    digest = hashlib.sha256()
    for name, buffer in buffers:
        digest.update(f"{name}\0".encode())
        add_tensor(digest.update, full_tensor(buffer))
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
