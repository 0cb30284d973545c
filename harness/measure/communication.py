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


def time_collectives(model: nn.Module, clock: StepClock) -> None:
    """Count the collectives of FSDP2 as communication.

    This is correct where a collective blocks until it is done, as gloo's do on the CPU. With NCCL
    the call only enqueues work, and its duration would mean nothing.
    """
    # FSDP2 has no public base class for custom collectives that keep the default behavior.
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
        DefaultAllGather,
        DefaultReduceScatter,
    )

    class TimedAllGather(DefaultAllGather):
        """FSDP2's all-gather, timed."""

        def __call__(self, *arguments: Any, **named: Any) -> Any:
            with clock.communicating():
                return super().__call__(*arguments, **named)

    class TimedReduceScatter(DefaultReduceScatter):
        """FSDP2's reduce-scatter, timed."""

        def __call__(self, *arguments: Any, **named: Any) -> Any:
            with clock.communicating():
                return super().__call__(*arguments, **named)

    for module in sharded_modules(model):
        module.set_custom_all_gather(TimedAllGather())
        module.set_custom_reduce_scatter(TimedReduceScatter())


def sharded_modules(model: nn.Module) -> Iterator[Any]:
    """Yield the modules that `fully_shard` was applied to."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            yield module
