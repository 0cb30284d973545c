"""Torch's communication hooks for DDP, the axis `comm_hook`, and the proof that they did something.

A hook gets a bucket of gradients, and shares it among the ranks in its own way. Those of torch that
send fewer bits are simple functions; PowerSGD also has a state, without which a trial could not go
on from a checkpoint to the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from harness.core.errors import NotApplied
from harness.records.record import Collective
from harness.spec.axes import Axes

# PowerSGD begins with this step, counted from 0: the earliest at which torch allows it, because DDP
# lays out its buckets anew after the first. Until then, gradients are sent as they are.
FIRST_COMPRESSED_STEP = 2
# The fields of torch's PowerSGDState that training changes, apart from its random numbers.
TENSORS_BY_BUCKET = ("error_dict", "p_memory_dict", "q_memory_dict")
COUNTS = ("iter", "total_numel_before_compression", "total_numel_after_compression")


class CommHook(Protocol):
    """A way to share buckets of gradients among the ranks of a group."""

    def __call__(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Return a future of the bucket's mean over the ranks."""
        ...

    def check_effect(self) -> None:
        """Raise NotApplied if it did nothing in the steps so far."""

    def check_communication(self, collectives: Sequence[Collective]) -> None:
        """Raise NotApplied if it shows nowhere in the collectives of a step."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs: plain values and tensors on the CPU."""
        ...

    def load(self, state: dict[str, Any], device: torch.device) -> None:
        """Put back what `state` returned."""


def comm_hook(axes: Axes, group: dist.ProcessGroup) -> CommHook | None:
    """Return the hook that the axes ask for, None for none."""
    if axes.comm_hook == "none":
        return None
    if axes.comm_hook == "powersgd":
        return PowerSGD(axes.matrix_approximation_rank, group)
    return Compression(axes.comm_hook, group)


class Compression:
    """Sends gradients in bf16 or fp16, without a state of its own."""

    def __init__(self, dtype: str, group: dist.ProcessGroup) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        hooks = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
        self._dtype = dtype
        self._hook = hooks[dtype]
        self._group = group
        self._calls = 0

    def __call__(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Return a future of the bucket's mean, which is summed up in the lower precision."""
        self._calls += 1
        return self._hook(self._group, bucket)

    def check_effect(self) -> None:
        """Raise NotApplied if DDP has never called it."""
        if not self._calls:
            raise NotApplied(f"comm_hook={self._dtype} had no effect: DDP has not called it")

    def check_communication(self, collectives: Sequence[Collective]) -> None:
        """Raise NotApplied if no gradients were sent in the lower precision."""
        types = sorted({sent.dtype for sent in collectives if sent.operation == "all_reduce"})
        if self._dtype not in types:
            raise NotApplied(
                f"comm_hook={self._dtype} had no effect: gradients were sent in"
                f" {' and '.join(types) or 'no type'}"
            )

    def state(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load(self, state: dict[str, Any], device: torch.device) -> None:
        """Do nothing."""


class PowerSGD:
    """Sends gradients as products of two matrices of a low rank (Vogels et al. 2019).

    What the approximation leaves out is added to the gradients of the next step, and each begins
    with the matrices of the one before. So every rank has a state of its own.
    """

    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        self._powersgd: Any = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=rank, start_powerSGD_iter=FIRST_COMPRESSED_STEP
        )
        self._hook = powerSGD_hook.powerSGD_hook

    def __call__(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Return a future of the bucket's mean, approximated from the third step on."""
        return self._hook(self._powersgd, bucket)

    def check_effect(self) -> None:
        """Raise NotApplied if it has compressed no gradient, though it has begun."""
        before = self._powersgd.total_numel_before_compression
        if before and self._powersgd.total_numel_after_compression >= before:
            raise NotApplied(
                "comm_hook=powersgd had no effect: no gradient is a matrix that rank"
                f" {self._powersgd.matrix_approximation_rank} makes smaller by half"
            )

    def check_communication(self, collectives: Sequence[Collective]) -> None:
        """Raise NotApplied if training ended before it began."""
        self.check_effect()
        if not self._powersgd.p_memory_dict:
            raise NotApplied(
                "comm_hook=powersgd had no effect: it begins with step"
                f" {FIRST_COMPRESSED_STEP + 1}, and there was none"
            )

    def state(self) -> dict[str, Any]:
        """Return errors, matrices, random numbers and counts."""
        algorithm, keys, *position = self._powersgd.rng.get_state()
        content: dict[str, Any] = {
            "random": [algorithm, torch.from_numpy(keys.astype("int64")), *position]
        }
        for name in TENSORS_BY_BUCKET:
            tensors = getattr(self._powersgd, name)
            content[name] = {bucket: tensor.cpu() for bucket, tensor in tensors.items()}
        for name in COUNTS:
            content[name] = getattr(self._powersgd, name)
        return content

    def load(self, state: dict[str, Any], device: torch.device) -> None:
        """Put back what `state` returned; the tensors go to `device`."""
        algorithm, keys, *position = state["random"]
        self._powersgd.rng.set_state((algorithm, keys.numpy().astype("uint32"), *position))
        for name in TENSORS_BY_BUCKET:
            tensors = {bucket: tensor.to(device) for bucket, tensor in state[name].items()}
            setattr(self._powersgd, name, tensors)
        for name in COUNTS:
            setattr(self._powersgd, name, state[name])
