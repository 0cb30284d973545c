"""Tells the step clock when ranks communicate, without taking part in the communication."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from harness.measure.clock import Phase, StepClock


def mark_gradient_wait(loss: Tensor, clock: StepClock) -> None:
    """Count what is left of a DDP backward as communication once this rank's gradients are done.

    Autograd runs its final callbacks in the order in which they were queued. The gradient of the
    loss itself is the first to be computed, so a callback that is queued there runs before DDP's
    own, which waits for the buckets that are still being reduced.
    """

    def queue_callback(gradient: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(
            lambda: clock.enter(Phase.communication)
        )

    loss.register_hook(queue_callback)  # type: ignore[no-untyped-call]


def time_collectives(model: nn.Module, clock: StepClock, reduce_scatter: Any = None) -> Any:
    """Count the collectives of FSDP2 as communication; return the reduce-scatter that does so.

    This is correct where a collective blocks until it is done, as gloo's do on the CPU. With NCCL
    the call only enqueues work, and its duration would mean nothing. `reduce_scatter` is the one
    that the model uses, None for FSDP2's own.
    """
    # FSDP2 has no public classes of its default collectives.
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
        DefaultAllGather,
        DefaultReduceScatter,
    )

    all_gather = _Timed(DefaultAllGather(), clock)
    timed_reduce_scatter = _Timed(reduce_scatter or DefaultReduceScatter(), clock)
    for module in sharded_modules(model):
        module.set_custom_all_gather(all_gather)
        module.set_custom_reduce_scatter(timed_reduce_scatter)
    return timed_reduce_scatter


class _Timed:
    """A collective of FSDP2 whose calls count as communication."""

    def __init__(self, collective: Any, clock: StepClock) -> None:
        self.collective = collective
        self.clock = clock
        self.allocate = collective.allocate  # which is no communication

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
