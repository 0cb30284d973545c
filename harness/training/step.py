"""One optimizer step: forward, backward and the optimizer, on this rank's share of a batch.

All of it runs in the timed region. Every line costs each step of each trial, so there is nothing
but training and the marks of the clock, and nothing that waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
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
        if self.grad_accum_steps == 1:
            loss = self._micro_step(batch)
        else:
            loss = self._accumulate(batch)
        self.clock.enter(Phase.optimizer)
        stepped = self.scaler.step(self.optimizer, self.max_grad_norm)
        if self.schedule is not None and stepped:
            self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def _accumulate(self, batch: Batch) -> Tensor:
        """Add up the gradients of equal parts of a batch, in its order.

        Ranks share gradients in the last part only. Returns the mean of the parts' losses.
        """
        parts = self.grad_accum_steps
        losses = []
        chunks = zip(*(tensor.chunk(parts) for tensor in batch), strict=True)
        for number, micro_batch in enumerate(chunks, start=1):
            with self.strategy.gradient_sync(number == parts):
                losses.append(self._micro_step(micro_batch))
        return torch.stack(losses).mean()

    def _micro_step(self, batch: Batch) -> Tensor:
        """Add the gradients of a batch's loss, divided by the number of micro-steps.

        Returns the loss itself, detached.
        """
        self.clock.enter(Phase.forward)
        loss = self.loss(self.module, batch)
        self.clock.enter(Phase.backward)
        if self.loss_hook is not None:
            self.loss_hook(loss)
        parts = self.grad_accum_steps
        self.scaler.backward(loss if parts == 1 else loss / parts)
        return loss.detach()
