"""FSDP2's collectives, and the marks of communication for the step clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

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
    if not clock.times_phases:
        return

    def queue_callback(gradient: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(
            lambda: clock.enter(Phase.communication)
        )

    loss.register_hook(queue_callback)  # type: ignore[no-untyped-call]


class ShardCollective:
    """A collective as FSDP2 calls it: with buffers that it allocates, by names of arguments.

    With a `clock`, its calls count as communication. This is correct where a collective blocks until
    it is done, as gloo's do on the CPU. With NCCL the call only enqueues work, and its duration would
    mean nothing.
    """

    def __init__(self, collective: Callable[..., Any], clock: StepClock | None = None) -> None:
        self.collective = collective
        self.clock = clock

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a buffer for the collective."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, **named: Any) -> Any:
        """Call the collective, and count its time."""
        if self.clock is None:
            return self.collective(**named)
        with self.clock.communicating():
            return self.collective(**named)


def all_gather(output_tensor: Tensor, input_tensor: Tensor, **named: Any) -> Any:
    """Fill `output_tensor` with the shards of all ranks, as FSDP2 does by default."""
    return all_gather_single(output_tensor, input_tensor, **named)


def reduce_scatter(output_tensor: Tensor, input_tensor: Tensor, **named: Any) -> Any:
    """Fill `output_tensor` with this rank's shards of the sum or mean, as FSDP2 does by default."""
    return reduce_scatter_single(output_tensor, input_tensor, **named)
