"""Digests that identify the model that a trial ended with: parameters, buffers and other state.

Two trials with the same digest have computed the same thing to the last bit, at any number of ranks
and under any strategy: digests are over unsharded parameters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from harness.core.paths import TrialFolder
from harness.records.record import RankFingerprints
from harness.training.ranks import gather
from harness.training.state import TrainingState


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the unsharded tensor on the CPU; every rank of a sharded tensor must call this."""
    # Only a DTensor has this method. To ask for the class would import it: a second of start-up.
    gather_shards = getattr(tensor, "full_tensor", None)
    if gather_shards is not None:
        tensor = gather_shards()
    return tensor.detach().cpu()


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


def rank_fingerprints(
    state: TrainingState, folder: TrialFolder, rank: int
) -> RankFingerprints | None:
    """Return the fingerprints in a rank's result, None if it has left none."""
    if not state.fingerprints:
        return None
    path = folder.fingerprint_path(rank)
    return RankFingerprints(
        steps=state.fingerprints,
        file=str(path.relative_to(folder.path)),
        file_digest=hashlib.sha256(path.read_bytes()).hexdigest(),
    )
