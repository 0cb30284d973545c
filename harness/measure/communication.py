"""When ranks communicate, told to the step clock without taking part in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from harness.measure.clock import Phase, StepClock


def mark_gradient_wait(loss: Tensor, clock: StepClock) -> None:
    """Have the rest of a DDP backward, once this rank's own gradients are done, count as communication.

    The engine's final callbacks run in the order in which they were queued. The loss's own gradient comes first of
    all, so this one runs before DDP's, which waits for the buckets that are still on their way.
    """

    def queue(gradient: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(
            lambda: clock.enter(Phase.communication)
        )

    loss.register_hook(queue)  # type: ignore[no-untyped-call]


def time_collectives(model: nn.Module, clock: StepClock) -> None:
    """Have the collectives of FSDP2 count as communication. Sound where they block, as gloo's on the CPU do."""
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
        DefaultAllGather,
        DefaultReduceScatter,
    )

    class TimedAllGather(DefaultAllGather):
        def __call__(self, *arguments: Any, **named: Any) -> Any:
            with clock.communicating():
                return super().__call__(*arguments, **named)

    class TimedReduceScatter(DefaultReduceScatter):
        def __call__(self, *arguments: Any, **named: Any) -> Any:
            with clock.communicating():
                return super().__call__(*arguments, **named)

    for module in sharded_modules(model):
        module.set_custom_all_gather(TimedAllGather())
        module.set_custom_reduce_scatter(TimedReduceScatter())


def sharded_modules(model: nn.Module) -> Iterator[Any]:
    from torch.distributed.fsdp import FSDPModule

    return (module for module in model.modules() if isinstance(module, FSDPModule))
