"""One optimizer step: all that happens between a batch that is there and parameters that have moved."""

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
    """A training step with all that it works on.

    It runs in the timed region: every line here costs each step of each trial, so there is nothing but
    training and the marks of the clock, and nothing reads from the device.
    """

    module: nn.Module  # as the strategy has prepared it
    loss: Callable[[nn.Module, Batch], Tensor]  # the workload's, under autocast where there is one
    loss_hook: Callable[[Tensor], None] | None  # the strategy's
    strategy: Strategy
    optimizer: Optimizer
    schedule: LRScheduler | None
    scaler: Scaler
    clock: StepClock
    grad_accum_steps: int
    max_grad_norm: float | None

    def run(self, batch: Batch) -> Tensor:
        """Train on this rank's share of a global batch; return its mean loss, detached, on the device."""
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
        """Add up the gradients of equal parts of a batch, in its order; return the mean of their losses.

        Ranks share gradients in the last part only.
        """
        parts = self.grad_accum_steps
        losses = []
        chunks = zip(*(tensor.chunk(parts) for tensor in batch), strict=True)
        for number, micro_batch in enumerate(chunks, start=1):
            with self.strategy.gradient_sync(number == parts):
                losses.append(self._micro_step(micro_batch))
        return torch.stack(losses).mean()

    def _micro_step(self, batch: Batch) -> Tensor:
        """Compute the loss of a batch and add its gradients, divided by the number of micro-steps."""
        self.clock.enter(Phase.forward)
        loss = self.loss(self.module, batch)
        self.clock.enter(Phase.backward)
        if self.loss_hook is not None:
            self.loss_hook(loss)
        parts = self.grad_accum_steps
        self.scaler.backward(loss if parts == 1 else loss / parts)
        return loss.detach()
