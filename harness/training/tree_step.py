"""The training step of `reduction: tree`, whose bits do not depend on the number of ranks.

Beside the order of sums, which `tree_reduction` explains, nothing else of a micro-batch may depend
on the ranks: it is fetched by itself (`loader.MicroBatches`), random numbers are seeded by the step
and its own number, and buffers such as running means are those of the first micro-batch, as DDP
keeps those of its first rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from harness.training.ranks import derive_seed, seed_generators
from harness.training.step import TrainStep
from harness.training.tree_reduction import GradientTree, local_part
from workloads.base import Batch


@dataclass(kw_only=True)
class TreeStep(TrainStep):
    """A training step whose gradients are summed up as a binary tree over its micro-batches."""

    model: nn.Module  # whose parameters are trained; without the strategy's wrapper
    device: torch.device
    seed: int  # of the trial
    dp_rank: int
    dp_size: int

    def compute_gradients(self, batch: Batch) -> Tensor:
        """Leave the mean gradients of the global batch in the parameters.

        Returns the mean loss of this rank's micro-batches.
        """
        losses = []
        tree = GradientTree()
        self.weigh(batch)
        for number, micro_batch in enumerate(self.micro_batches(batch)):
            self._seed_micro_batch(number)
            with self._first_buffers(number):
                losses.append(self.micro_step(micro_batch, number, divisor=1))
            tree.add(self._take_gradients())
        self._set_gradients(tree.total())
        return torch.stack(losses).mean()

    def micro_batches(self, batch: Batch) -> Iterator[Batch]:
        """Yield the micro-batches, whose tensors follow each other in the batch."""
        width = len(batch) // self.grad_accum_steps
        for start in range(0, len(batch), width):
            yield batch[start : start + width]

    def _seed_micro_batch(self, number: int) -> None:
        """Seed all generators for this rank's micro-batch `number`, whichever rank this is."""
        micro_batch = number * self.dp_size + self.dp_rank
        seed_generators(derive_seed(self.seed, self.step, micro_batch), self.device)

    @contextmanager
    def _first_buffers(self, number: int) -> Iterator[None]:
        """Put back the buffers after any but the first micro-batch."""
        if number == 0:
            yield
            return
        saved = [buffer.clone() for buffer in self.model.buffers()]
        yield
        for buffer, value in zip(self.model.buffers(), saved, strict=True):
            buffer.copy_(value)

    def _take_gradients(self) -> list[Tensor | None]:
        """Return the parameters' gradients, and leave none in the parameters.

        They are copies where DDP keeps gradients in its buckets, which the next backward overwrites.
        """
        gradients: list[Tensor | None] = []
        for parameter in self._parameters:
            gradient = parameter.grad
            if gradient is not None and self.strategy.axes.gradient_as_bucket_view:
                gradient = gradient.clone()
            gradients.append(gradient)
            parameter.grad = None
        return gradients

    def _set_gradients(self, sums: Sequence[Tensor | None]) -> None:
        """Give each parameter its sum, divided by the number of micro-batches."""
        micro_batches = float(self.dp_size * self.grad_accum_steps)
        for parameter, gradient in zip(self._parameters, sums, strict=True):
            if gradient is not None:
                local_part(gradient).div_(micro_batches)
            parameter.grad = gradient

    @cached_property
    def _parameters(self) -> list[nn.Parameter]:
        """The parameters that are trained, in the model's order."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]
