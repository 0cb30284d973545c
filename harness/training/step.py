"""One optimizer step: forward, backward and the optimizer, on this rank's share of a batch.

All of it runs in the timed region. Every line costs each step of each trial, so there is nothing
but training and the marks of the clock, and nothing that waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from harness.measure.clock import Phase
from harness.sweep.axes import Axes
from harness.training.execution import Compiler, uses_cuda_graphs
from harness.training.loss_weights import weighted, weights_of
from harness.training.optimization import make_optimizer, make_schedule
from harness.training.precision import Scaler, under_autocast
from harness.training.ranks import ParallelMesh, derive_seed, seed_generators
from harness.training.strategies import Strategy
from harness.training.tree_reduction import GradientTree, local_part
from workloads.base import Batch, Workload

# Called with a moment of a step, a micro-step and a value: `indices` of this rank's samples before the
# step; for each micro-step `batch`, its mean `loss`, before it is weighted, divided or scaled, and
# `backward`; then `gradients`, which all ranks have summed up, `optimizer` and `after_step`, when these
# are done. Micro-steps are counted from 0 in each step. What it does is in the timed region, so an
# observed step measures nothing.
Observer = Callable[[str, int, Any], None]


def observe_nothing(moment: str, micro_step: int, value: Any) -> None:
    """Stand in for an observer."""


class TrainStep:
    """A training step with all that it works on."""

    def __init__(
        self,
        *,
        axes: Axes,
        mesh: ParallelMesh,
        seed: int,  # of the trial
        workload: Workload,
        model: nn.Module,  # whose parameters are trained; without the strategy's wrapper
        strategy: Strategy,
        compiler: Compiler,
        total_steps: int,
    ) -> None:
        self.axes, self.mesh, self.seed = axes, mesh, seed
        self.workload, self.model, self.strategy = workload, model, strategy
        self.clock = strategy.clock
        self.module = strategy.prepare(model, workload, compiler)
        self.optimizer = make_optimizer(workload, model, axes)
        # None for a constant learning rate.
        self.schedule = make_schedule(workload, self.optimizer, axes, total_steps)
        self.scaler = Scaler(axes, mesh.device)
        self.loss = under_autocast(axes, mesh.device, workload.loss)
        # None: all micro-batches count alike.
        self.loss_weights = weights_of(workload, mesh, self.clock)
        self.loss_factors: Tensor | None = None  # of the micro-batches of the step
        # CUDA graphs write the next loss into the same memory.
        self.copies_losses = uses_cuda_graphs(axes, mesh.device)
        self.observe: Observer = observe_nothing
        self.step = 0  # optimizer steps done; set at the start of each segment

    def run(self, batch: Batch) -> Tensor:
        """Train on this rank's share of a global batch.

        Returns the mean loss over the share: a detached scalar on the device, as to read it would
        wait for the device. With weights of micro-batches, it is what the share contributes: the
        mean over all ranks is the weighted mean of the global batch.
        """
        loss = self.compute_gradients(batch)
        self.clock.enter(Phase.optimizer)
        self.strategy.note_gradients()
        self.observe("gradients", 0, None)
        stepped = self.scaler.step(self.optimizer, self.axes.max_grad_norm)
        if self.schedule is not None and stepped:
            self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.observe("optimizer", 0, None)
        self.workload.after_step(self.model)
        self.observe("after_step", 0, None)
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
        self.observe("batch", number, batch)
        self.clock.enter(Phase.forward)
        loss = self.loss(self.module, batch)
        self.observe("loss", number, loss)
        if self.loss_factors is not None:
            loss = weighted(loss, self.loss_factors[number])
        self.clock.enter(Phase.backward)
        self.strategy.before_backward(loss)
        self.scaler.backward(loss if divisor == 1 else loss / divisor)
        self.observe("backward", number, None)
        loss = loss.detach()
        return loss.clone() if self.copies_losses else loss


class TreeStep(TrainStep):
    """A step of `reduction: tree`, whose bits do not depend on the number of ranks.

    Gradients are summed up as a binary tree over the micro-batches (`tree_reduction`). Nothing else
    of a micro-batch may depend on the ranks either: it is fetched alone (`loader.BatchStream`),
    random numbers are seeded by the step and its own number, and buffers such as running means are
    those of the first micro-batch, as DDP keeps those of its first rank.
    """

    def accumulate(self, batch: Batch) -> Tensor:
        """Leave the mean gradients of the global batch in the parameters.

        Returns the mean loss of this rank's micro-batches.
        """
        losses = []
        tree = GradientTree()
        rank, ranks = self.mesh.rank, self.mesh.world_size
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
