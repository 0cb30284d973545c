"""One optimizer step: forward, backward and the optimizer, on this rank's share of a batch.

All of it runs in the timed region. Every line costs each step of each trial, so there is nothing
but training and the marks of the clock, and nothing that waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.measure.clock import Phase, all_gather_single
from harness.training.digests import local_part
from harness.training.execution import CUDA_GRAPHS, Compiler, Scaler, under_autocast
from harness.training.model import make_optimizer, make_schedule
from harness.training.ranks import derive_seed, seed_generators
from harness.training.strategies import Strategy
from workloads.base import Batch, Workload

# Called with a moment of a step, a micro-step and a value: `indices` of this rank's samples before the
# step; for each micro-step `batch`, its mean `loss`, before it is weighted, divided or scaled, and
# `backward`; then `gradients`, which all ranks have summed up, `optimizer` and `after_step`, when these
# are done. Micro-steps are counted from 0 in each step. What it does is in the timed region, so an
# observed step measures nothing.
Observer = Callable[[str, int, Any], None]
Gradients = list[Tensor | None]  # of each parameter; None for one without


def observe_nothing(moment: str, micro_step: int, value: Any) -> None:
    """Stand in for an observer."""


@dataclass(kw_only=True, eq=False)
class TrainStep:
    """A training step with all that it works on."""

    workload: Workload
    model: nn.Module  # without the strategy's wrapper
    strategy: Strategy
    compiler: InitVar[Compiler]
    seed: int  # of the trial
    total_steps: int

    def __post_init__(self, compiler: Compiler) -> None:
        workload = self.workload
        self.axes = axes = self.strategy.axes
        self.mesh = self.strategy.mesh
        self.device = self.mesh.device
        self.clock = self.strategy.clock
        self.module = self.strategy.prepare(self.model, workload, compiler)
        self.optimizer = make_optimizer(workload, self.model, axes)
        # None for a constant learning rate.
        self.schedule = make_schedule(workload, self.optimizer, axes, self.total_steps)
        self.scaler = Scaler(axes, self.device)
        self.loss = under_autocast(axes, self.device, workload.loss)
        self.weighs_losses = type(workload).loss_weight is not Workload.loss_weight
        self.loss_factors: Tensor | None = None  # of the micro-batches of the step
        # CUDA graphs, which only GPUs have, write the next loss into the same memory.
        self.copies_losses = axes.execution in CUDA_GRAPHS
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
        if self.weighs_losses:
            self.clock.enter(Phase.forward)
            self.loss_factors = self._weigh_micro_batches(batch)
        return self.accumulate(batch)

    def _weigh_micro_batches(self, batch: Batch) -> Tensor:
        """Return the factors of this rank's losses, fp64, shape (micro-batches,); all ranks must call it.

        A loss that is a mean over target tokens is a mean over other numbers of them in each micro-batch.
        Let micro-batch i of n, over all micro-steps and ranks, have the loss L_i and the weight w_i. The
        loss of the global batch is then

            sum(w_i L_i) / sum(w_i) = 1/n sum(f_i L_i)    where f_i = w_i / (1/n sum(w_i))

        and its gradient likewise. Micro-steps and strategies average over micro-batches, the right-hand
        side. So it suffices to multiply each loss by its factor f_i before its backward.
        """
        scalars = []
        for micro_batch in self.micro_batches(batch):
            weight = self.workload.loss_weight(micro_batch)
            if not isinstance(weight, Tensor):  # filled there, as a copy would wait for the device
                weight = torch.full((), weight, dtype=torch.float64, device=self.device)
            scalars.append(weight.detach().double().reshape(()))
        weights = torch.stack(scalars)
        ranks = self.mesh.world_size
        if ranks == 1:
            return weights / weights.mean()
        gathered = weights.new_empty(ranks * len(weights))
        with self.clock.communicating():
            all_gather_single(gathered, weights, group=dist.group.WORLD)
        # By micro-step, then by rank: the order of `reduction: tree`, whose bits must not depend on
        # the number of ranks.
        return weights / gathered.view(ranks, -1).T.flatten().mean()

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
            with self.strategy.gradient_sync(is_last=number == parts - 1):
                loss = self.micro_step(micro_batch, number, divisor=parts)
            losses.append(loss)
        return torch.stack(losses).mean()

    def micro_batches(self, batch: Batch) -> Iterator[Batch]:
        """Yield the equal parts that a batch is cut into, in its order."""
        chunks = [tensor.chunk(self.axes.grad_accum_steps) for tensor in batch]
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
        share = loss if divisor == 1 else loss / divisor
        self.scaler.backward(share)
        self.observe("backward", number, None)
        loss = loss.detach()
        return loss.clone() if self.copies_losses else loss


def weighted(loss: Tensor, factor: Tensor) -> Tensor:
    """Return a loss times its factor, in the type of the loss.

    Cross-entropy of a batch without any target is NaN, and counts 0 like its gradient.
    """
    product = loss * factor.to(loss.dtype)
    return torch.where(factor == 0, torch.zeros_like(loss), product)


class TreeStep(TrainStep):
    """A step of `reduction: tree`, whose bits do not depend on the number of ranks.

    A sum of floats depends on its order, and the order in which a backend sums up the ranks' gradients
    depends on how many ranks there are, on DDP's buckets and on FSDP2's shards. Here the order is fixed
    instead. A global batch is cut into micro-batches, as many as `world_size` times
    `grad_accum_steps`, and their gradients are the leaves of a binary tree:

        ((g0 + g1) + (g2 + g3)) + ((g4 + g5) + (g6 + g7))

    Rank r of n computes the micro-batches r, n + r, 2n + r, ... So the ranks' gradients of one
    micro-step are the leaves of a subtree, which the ranks sum up together (`strategies.sum_rows`).
    Each rank then sums up the subtrees. Every element of a gradient is summed up in the same order, whichever
    bucket or shard it is in, so one process, two ranks and four compute the same bits.

    Nothing else of a micro-batch may depend on the ranks either: it is fetched alone
    (`loader.BatchStream`), random numbers are seeded by the step and its own number, and buffers such as
    running means are those of the first micro-batch, as DDP keeps those of its first rank.
    """

    def accumulate(self, batch: Batch) -> Tensor:
        """Leave the mean gradients of the global batch in the parameters.

        Returns the mean loss of this rank's micro-batches.
        """
        losses: list[Tensor] = []
        micro_steps = self.axes.grad_accum_steps
        total = sum_tree(self._gradients(batch, losses), micro_steps)
        count = float(micro_steps * self.mesh.world_size)  # of the micro-batches of all ranks
        for parameter, gradient in zip(self.model.parameters(), total, strict=True):
            if gradient is not None:
                local_part(gradient).div_(count)
            parameter.grad = gradient
        return torch.stack(losses).mean()

    def _gradients(self, batch: Batch, losses: list[Tensor]) -> Iterator[Gradients]:
        """Yield the parameters' gradients of each micro-batch, and add its loss to `losses`.

        They are copies where DDP keeps gradients in its buckets, which the next backward overwrites.
        """
        model = self.model
        for number, micro_batch in enumerate(self.micro_batches(batch)):
            # The micro-batch's number over all ranks, whichever rank this is.
            of_all = number * self.mesh.world_size + self.mesh.rank
            seed_generators(derive_seed(self.seed, self.step, of_all), self.device)
            if number == 1:
                buffers = [buffer.clone() for buffer in model.buffers()]
            losses.append(self.micro_step(micro_batch, number, divisor=1))
            if number > 0:
                for buffer, of_first in zip(model.buffers(), buffers, strict=True):
                    buffer.copy_(of_first)
            gradients: Gradients = []
            for parameter in model.parameters():
                gradient = parameter.grad
                if gradient is not None and self.axes.ddp_gradient_as_bucket_view:
                    gradient = gradient.clone()
                gradients.append(gradient)
            model.zero_grad(set_to_none=True)
            yield gradients
            del gradients, gradient  # which the sum has now

    def micro_batches(self, batch: Batch) -> Iterator[Batch]:
        """Yield the micro-batches, whose tensors follow each other in the batch."""
        width = len(batch) // self.axes.grad_accum_steps
        for start in range(0, len(batch), width):
            yield batch[start : start + width]


def sum_tree(leaves: Iterator[Gradients], count: int) -> Gradients:
    """Return the sum of the next `count` leaves, a power of two, as a binary tree.

    They are taken as they are needed, so that no more than one sum of each height is held. The first ones
    are added to in place.
    """
    if count == 1:
        return next(leaves)
    earlier = sum_tree(leaves, count // 2)
    later = sum_tree(leaves, count // 2)
    total: Gradients = []
    for gradient, addend in zip(earlier, later, strict=True):
        if gradient is None:
            gradient = addend
        elif addend is not None:
            local_part(gradient).add_(local_part(addend))
        total.append(gradient)
    return total
