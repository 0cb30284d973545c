"""One optimizer step: forward, backward and the optimizer, on this rank's share of a batch.

All of it runs in the timed region. Every line costs each step of each trial, so there is nothing
but training and the marks of the clock, and nothing that waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from harness.measure.clock import Phase, StepClock
from harness.training.precision import Scaler
from harness.training.strategies.base import Strategy
from workloads.base import Batch


@dataclass(kw_only=True)
class TrainStep:
    """A training step with all that it works on."""

    module: nn.Module  # as the strategy has prepared it
    # The workload's mean loss of a batch, under autocast where the axes ask for it.
    loss: Callable[[nn.Module, Batch], Tensor]
    loss_hook: Callable[[Tensor], None] | None  # the strategy's, called before each backward
    strategy: Strategy
    optimizer: Optimizer
    schedule: LRScheduler | None  # None for a constant learning rate
    scaler: Scaler
    clock: StepClock
    grad_accum_steps: int  # micro-steps of an optimizer step
    max_grad_norm: float | None  # of all gradients together; None for no limit

    def run(self, batch: Batch) -> Tensor:
        """Train on this rank's share of a global batch.

        Returns the mean loss over the share: a detached scalar on the device, as to read it would
        wait for the device.
        """
        loss = self.compute_gradients(batch)
        self.clock.enter(Phase.optimizer)
        stepped = self.scaler.step(self.optimizer, self.max_grad_norm)
        if self.schedule is not None and stepped:
            self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def begin_segment(self, step: int) -> None:
        """Take the step that comes next, counted from 0 over all epochs."""

    def compute_gradients(self, batch: Batch) -> Tensor:
        """Leave the mean gradients of the global batch in the parameters.

        With accumulation, gradients of equal parts of the batch are added up in its order, and
        ranks share them in the last part only. Returns the mean of the parts' losses.
        """
        parts = self.grad_accum_steps
        if parts == 1:
            return self.micro_step(batch, divisor=1)
        losses = []
        for number, micro_batch in enumerate(self.micro_batches(batch), start=1):
            with self.strategy.gradient_sync(number == parts):
                losses.append(self.micro_step(micro_batch, divisor=parts))
        return torch.stack(losses).mean()

    def micro_batches(self, batch: Batch) -> Iterator[Batch]:
        """Yield the equal parts that a batch is cut into, in its order."""
        yield from zip(*(tensor.chunk(self.grad_accum_steps) for tensor in batch), strict=True)

    def micro_step(self, batch: Batch, divisor: int) -> Tensor:
        """Add the gradients of a batch's loss over `divisor` to those of the parameters.

        Returns the loss itself, detached.
        """
        self.clock.enter(Phase.forward)
        loss = self.loss(self.module, batch)
        self.clock.enter(Phase.backward)
        if self.loss_hook is not None:
            self.loss_hook(loss)
        self.scaler.backward(loss if divisor == 1 else loss / divisor)
        return loss.detach()
