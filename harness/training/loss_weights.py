"""The weights of micro-batches in the mean over a global batch: a workload's own `loss_weight`.

A loss that is a mean over target tokens is a mean over other numbers of them in each micro-batch.
Let micro-batch i of n, over all micro-steps and ranks, have the loss L_i and the weight w_i. The loss
of the global batch is then

    sum(w_i L_i) / sum(w_i) = 1/n sum(f_i L_i)    where f_i = w_i / (1/n sum(w_i))

and its gradient likewise. Micro-steps and strategies average over micro-batches, the right-hand
side. So it suffices to multiply each loss by its factor f_i before its backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from harness.measure.clock import StepClock
from harness.measure.communication import all_gather_single
from harness.training.ranks import ParallelMesh
from workloads.base import Batch, Workload


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """Weighs the micro-batches of a step against those of all ranks."""

    loss_weight: Callable[[Batch], Tensor | float]  # the workload's
    group: dist.ProcessGroup | None  # of all ranks; None if all of them have the same samples
    clock: StepClock

    def factors(self, micro_batches: Iterable[Batch]) -> Tensor:
        """Return the factors f_i of this rank's micro-batches, fp64, shape (micro-batches,).

        Every rank must call this. Nothing waits for the device.
        """
        scalars = []  # in fp64, on the device of the batch
        for micro_batch in micro_batches:
            weight = self.loss_weight(micro_batch)
            if isinstance(weight, Tensor):
                scalars.append(weight.detach().double().reshape(()))
            else:
                device = micro_batch[0].device
                scalars.append(torch.full((), weight, dtype=torch.float64, device=device))
        weights = torch.stack(scalars)
        if self.group is None:
            return weights / weights.mean()
        gathered = weights.new_empty(self.group.size() * len(weights))
        with self.clock.communicating():
            all_gather_single(gathered, weights, group=self.group)
        # By micro-step, then by rank: the order of `reduction: tree`, whose bits must not depend on
        # the number of ranks.
        in_order = gathered.view(self.group.size(), -1).T.flatten()
        return weights / in_order.mean()


def weights_of(workload: Workload, mesh: ParallelMesh, clock: StepClock) -> LossWeights | None:
    """Return the weights of the workload's micro-batches, None if its samples weigh the same."""
    if type(workload).loss_weight is Workload.loss_weight:
        return None
    group = dist.group.WORLD if mesh.world_size > 1 else None
    return LossWeights(loss_weight=workload.loss_weight, group=group, clock=clock)


def weighted(loss: Tensor, factor: Tensor) -> Tensor:
    """Return a loss times its factor, in the type of the loss.

    Cross-entropy of a batch without any target is NaN, and counts 0 like its gradient.
    """
    product = loss * factor.to(loss.dtype)
    return torch.where(factor == 0, torch.zeros_like(loss), product)
