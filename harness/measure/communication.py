"""FSDP2's collectives, and the marks of communication for the step clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.measure.clock import Phase, StepClock

# Torch 2.13 has renamed both, and warns of the names before.
all_gather_single: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def mark_gradient_wait(loss: Tensor, clock: StepClock) -> None:
    """Count the rest of a DDP backward as communication once this rank's gradients are done.

    Autograd runs its final callbacks in the order in which they were queued. The gradient of the
    loss itself is the first to be computed, so a callback that is queued there runs before DDP's
    own, which waits for the buckets that are still being reduced.
    """

    def queue_callback(gradient: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(
            lambda: clock.enter(Phase.communication)
        )

    loss.register_hook(queue_callback)  # type: ignore[no-untyped-call]


class ShardCollective:
    """A collective as FSDP2 calls it: with buffers that it allocates, by names of arguments."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a buffer for the collective."""
        return torch.empty(*size, dtype=dtype, device=device)


class AllGather(ShardCollective):
    """Gathers the shards of all ranks, as FSDP2 does by default."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> Any:
        """Fill `output_tensor` with the shards of all ranks."""
        return all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)


class ReduceScatter(ShardCollective):
    """Sums up gradients over all ranks into the shards of each, as FSDP2 does by default."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        """Fill `output_tensor` with this rank's shards of the sum or mean."""
        return reduce_scatter_single(
            output_tensor, input_tensor, op=op, group=group, async_op=async_op
        )


class TimedCollective(ShardCollective):
    """A collective of FSDP2 whose calls count as communication.

    This is correct where a collective blocks until it is done, as gloo's do on the CPU. With NCCL
    the call only enqueues work, and its duration would mean nothing.
    """

    def __init__(self, collective: Any, clock: StepClock) -> None:
        self.collective = collective
        self.clock = clock

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the collective and count its time."""
        with self.clock.communicating():
            return self.collective(*arguments, **named)


def sharded_modules(model: nn.Module) -> Iterator[Any]:
    """Yield the modules that `fully_shard` was applied to."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            yield module
