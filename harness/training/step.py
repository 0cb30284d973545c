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
from harness.measure.flops import Loss
from harness.spec.axes import Axes
from harness.training.loss_weights import LossWeights, weighted
from harness.training.mesh import ParallelMesh
from harness.training.order import Indices
from harness.training.precision import Scaler
from harness.training.ranks import derive_seed, seed_generators
from harness.training.strategies.base import Strategy
from harness.training.tree_reduction import GradientTree, local_part
from workloads.base import Batch


class StepObserver:
    """Looks at the values of a training step, at its named moments.

    The methods of this class do nothing: derive a class, and give an object of it to a `TrainStep`.
    What they do is in the timed region, so an observed step measures nothing. Steps are counted
    from 0 over all epochs, micro-steps from 0 in each step.
    """

    def before_step(self, step: int, indices: Indices) -> None:
        """Look at the parameters, and at which samples this rank is going to train on."""

    def before_forward(self, step: int, micro_step: int, batch: Batch) -> None:
        """Look at the batch, on the device, and at the generators that the forward will draw from."""

    def after_forward(self, step: int, micro_step: int, loss: Tensor) -> None:
        """Look at the mean loss of the micro-batch, before it is weighted, divided or scaled."""

    def after_backward(self, step: int, micro_step: int) -> None:
        """Look at the gradients of this rank."""

    def before_optimizer(self, step: int) -> None:
        """Look at the gradients of the whole step, which all ranks have summed up."""

    def after_optimizer(self, step: int) -> None:
        """Look at the parameters and the state of the optimizer."""

    def after_step(self, step: int) -> None:
        """Look at what the workload's own `after_step` has left."""


NO_OBSERVER = StepObserver()


@dataclass(kw_only=True)
class TrainStep:
    """A training step with all that it works on."""

    axes: Axes
    mesh: ParallelMesh
    seed: int  # of the trial
    model: nn.Module  # whose parameters are trained; without the strategy's wrapper
    module: nn.Module  # as the strategy has prepared it
    loss: Loss  # the workload's, under autocast where the axes ask for it
    loss_hook: Callable[[Tensor], None] | None  # the strategy's, called before each backward
    loss_weights: LossWeights | None  # None: all micro-batches count the same
    # Whether losses are copied, as CUDA graphs write the next one into the same memory.
    copies_losses: bool
    strategy: Strategy
    optimizer: Optimizer
    schedule: LRScheduler | None  # None for a constant learning rate
    scaler: Scaler
    clock: StepClock
    after_step: Callable[[], None] | None  # the workload's own, after the optimizer
    observer: StepObserver = NO_OBSERVER
    step: int = 0  # optimizer steps done; set at the start of each segment
    loss_factors: Tensor | None = None  # of the micro-batches of the step, by `loss_weights`

    def run(self, batch: Batch) -> Tensor:
        """Train on this rank's share of a global batch.

        Returns the mean loss over the share: a detached scalar on the device, as to read it would
        wait for the device. With weights of micro-batches, it is what the share contributes: the
        mean over all ranks is the weighted mean of the global batch.
        """
        loss = self.compute_gradients(batch)
        self.clock.enter(Phase.optimizer)
        self.strategy.note_gradients()
        self.observer.before_optimizer(self.step)
        stepped = self.scaler.step(self.optimizer, self.axes.max_grad_norm)
        if self.schedule is not None and stepped:
            self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.observer.after_optimizer(self.step)
        if self.after_step is not None:
            self.after_step()
        self.observer.after_step(self.step)
        self.step += 1
        return loss

    def compute_gradients(self, batch: Batch) -> Tensor:
        """Leave the mean gradients of the global batch in the parameters; return this rank's mean loss."""
        if self.loss_weights is not None:
            self.clock.enter(Phase.forward)
            self.loss_factors = self.loss_weights.factors(self.micro_batches(batch))
        return self.accumulate(batch)

    def accumulate(self, batch: Batch) -> Tensor:
        """Leave the mean gradients of the global batch in the parameters.

        With accumulation, gradients of equal parts of the batch are added up in its order, and
        ranks share them in the last part only. Returns the mean of the parts' losses.
        """
        parts = self.axes.grad_accum_steps
        if parts == 1:
            return self.micro_step(batch, number=0, divisor=1)
        losses = []
        for number, micro_batch in enumerate(self.micro_batches(batch)):
            with self.strategy.gradient_sync(number == parts - 1):
                losses.append(self.micro_step(micro_batch, number, divisor=parts))
        return torch.stack(losses).mean()

    def micro_batches(self, batch: Batch) -> Iterator[Batch]:
        """Yield the equal parts that a batch is cut into, in its order."""
        chunks = (tensor.chunk(self.axes.grad_accum_steps) for tensor in batch)
        yield from zip(*chunks, strict=True)

    def micro_step(self, batch: Batch, number: int, divisor: int) -> Tensor:
        """Add the gradients of a batch's loss over `divisor` to those of the parameters.

        `number` counts the micro-steps of an optimizer step. Returns the loss itself, detached, times
        its factor if there are any.
        """
        self.observer.before_forward(self.step, number, batch)
        self.clock.enter(Phase.forward)
        loss = self.loss(self.module, batch)
        self.observer.after_forward(self.step, number, loss)
        if self.loss_factors is not None:
            loss = weighted(loss, self.loss_factors[number])
        self.clock.enter(Phase.backward)
        if self.loss_hook is not None:
            self.loss_hook(loss)
        self.scaler.backward(loss if divisor == 1 else loss / divisor)
        self.observer.after_backward(self.step, number)
        loss = loss.detach()
        return loss.clone() if self.copies_losses else loss


@dataclass(kw_only=True)
class TreeStep(TrainStep):
    """A step of `reduction: tree`, whose bits do not depend on the number of ranks.

    Gradients are summed up as a binary tree over the micro-batches (`tree_reduction`). Nothing else
    of a micro-batch may depend on the ranks either: it is fetched alone (`loader.SeededFetch`),
    random numbers are seeded by the step and its own number, and buffers such as running means are
    those of the first micro-batch, as DDP keeps those of its first rank.
    """

    def accumulate(self, batch: Batch) -> Tensor:
        """Leave the mean gradients of the global batch in the parameters.

        Returns the mean loss of this rank's micro-batches.
        """
        losses = []
        tree = GradientTree()
        rank, ranks = self.mesh.rank, self.mesh.size
        for number, micro_batch in enumerate(self.micro_batches(batch)):
            # The micro-batch's number over all ranks, whichever rank this is.
            seed = derive_seed(self.seed, self.step, number * ranks + rank)
            seed_generators(seed, self.mesh.device)
            if number == 1:
                buffers = [buffer.clone() for buffer in self.model.buffers()]
            losses.append(self.micro_step(micro_batch, number, divisor=1))
            if number > 0:
                for buffer, of_first in zip(self.model.buffers(), buffers, strict=True):
                    buffer.copy_(of_first)
            tree.add(self._take_gradients())
        count = float(ranks * self.axes.grad_accum_steps)  # of the micro-batches of all ranks
        for parameter, gradient in zip(self.model.parameters(), tree.total(), strict=True):
            if gradient is not None:
                local_part(gradient).div_(count)
            parameter.grad = gradient
        return torch.stack(losses).mean()

    def micro_batches(self, batch: Batch) -> Iterator[Batch]:
        """Yield the micro-batches, whose tensors follow each other in the batch."""
        width = len(batch) // self.axes.grad_accum_steps
        for start in range(0, len(batch), width):
            yield batch[start : start + width]

    def _take_gradients(self) -> list[Tensor | None]:
        """Return the parameters' gradients, and leave none in the parameters.

        They are copies where DDP keeps gradients in its buckets, which the next backward overwrites.
        """
        gradients: list[Tensor | None] = []
        for parameter in self.model.parameters():
            gradient = parameter.grad
            if gradient is not None and self.axes.ddp.gradient_as_bucket_view:
                gradient = gradient.clone()
            gradients.append(gradient)
            parameter.grad = None
        return gradients
