"""A workload with one planted defect: what makes two runs part, at a known step and rank.

A defect that is in a workload is written there. One that is in what trains it, such as the order of
samples or a collective, is planted in the harness's own classes, in the rank's own process.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import get_worker_info

from harness.training import strategies, train
from harness.training.order import BatchOrder, Indices
from harness.training.step import TrainStep
from harness.training.strategies import Strategy
from tests.support.line import LineFit
from tests.support.line import Options as LineOptions
from workloads import Batch, Between, Splits


@dataclass(frozen=True, kw_only=True)
class MutantOptions(LineOptions):
    """Which defect the workload has, and where."""

    mutant: str = "none"  # a key of PLANTS, or one that the workload itself has
    at: Annotated[int, Between(1)] = 1  # the step, counted from 1
    at_rank: int = 0  # where the defect is one rank's
    parameter: int = 0  # whose bit is flipped, of BIT_PARAMETERS
    bit: int = 0
    steps: str = ""  # a file to which rank 0 adds the number of each step that it has computed


BIT_PARAMETERS = ("inner.0.weight", "inner.0.bias", "inner.1.weight", "inner.1.bias")


def this_rank() -> int:
    """Return the rank of this process."""
    return int(os.environ.get("RANK", "0"))


class Net(nn.Module):
    """A model with batch norm and dropout, whose parameters are not in the order of their use."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.head = nn.Linear(16, 1)
        self.inner = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(dropout)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.inner(inputs))
        return outputs


class MutantLine(LineFit):
    """Fits the line of `tests.support.line`, with the defect that its options name."""

    Options = MutantOptions
    options: MutantOptions

    def splits(self) -> Splits:
        splits = super().splits()
        plant = PLANTS.get(self.options.mutant)
        if plant is not None:
            plant(self)
        if self.options.steps:
            # A segment is a step then, so that every step can be interrupted.
            train.SEGMENT_SECONDS = 1e-9
        return replace(splits, train=MutantSamples(splits.train, self.options))

    def build_model(self) -> nn.Module:
        return Net(self.options.dropout)

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(model, Net)
        return [model.inner]

    def optimizer(self, model: nn.Module) -> Optimizer:
        self.adam = MutantAdam(model, self.options)
        return self.adam

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler | None:
        if self.options.mutant != "learning rate":
            return None
        return LambdaLR(optimizer, lambda step: 1 + 1e-6 * (step + 1 >= self.options.at))

    def _update_average(self, model: nn.Module) -> None:
        is_hit = self.step >= self.options.at and this_rank() != self.options.at_rank
        if self.options.mutant != "average at one rank" or not is_hit:
            super()._update_average(model)

    def after_step(self, model: nn.Module) -> None:
        """Note the step, then shrink one parameter, or change the statistics of batch norm, once."""
        assert isinstance(model, Net)
        if self.options.steps and this_rank() == 0:
            # Counted from the first attempt on: a checkpoint has Adam's number.
            number = int(next(iter(self.adam.state.values()))["step"])
            with Path(self.options.steps).open("a", encoding="ascii") as file:
                file.write(f"{number}\n")
        if self.step != self.options.at:
            return
        if self.options.mutant == "after_step":
            getattr(model.head.bias, "_local_tensor", model.head.bias).detach().mul_(0.5)
        elif self.options.mutant == "buffers in after_step":
            model.inner[1].get_buffer("running_mean").add_(1.0)

    def evaluate(self, model: nn.Module, batch: Batch) -> Tensor:
        is_hit = self.step >= self.options.at and this_rank() == self.options.at_rank
        if self.options.mutant == "dropout in evaluation" and is_hit:
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.train()
        return super().evaluate(model, batch)


class MutantSamples:
    """Samples of which one batch is not what was asked for."""

    def __init__(self, samples: Any, options: MutantOptions) -> None:
        self.samples = samples
        self.options = options
        self.fetched = 0  # batches, by this process

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return the samples; the defect is in the first epoch, whose batches are counted here."""
        self.fetched += 1
        worker = get_worker_info()
        step = self.fetched
        if worker is not None:
            step = (self.fetched - 1) * worker.num_workers + worker.id + 1
        chosen = list(indices)
        if step == self.options.at and this_rank() == self.options.at_rank:
            if self.options.mutant == "worker seeded by time":
                _seed_by_time()
            elif self.options.mutant == "dropped sample":
                chosen[-1] = chosen[0]
        batch: Batch = self.samples.batch(chosen)
        return batch


def _seed_by_time() -> None:
    """Seed all generators as nobody should."""
    now = time.time_ns()
    random.seed(now)
    np.random.seed(now % 2**32)
    torch.default_generator.manual_seed(now)


class MutantAdam(torch.optim.Adam):
    """Adam that once keeps its gradients, or flips a bit of one parameter at one rank."""

    def __init__(self, model: nn.Module, options: MutantOptions) -> None:
        super().__init__(model.parameters(), lr=0.01)
        self.named = dict(model.named_parameters())
        self.options = options

    @property
    def steps(self) -> int:
        """The steps that were taken, of which no attribute of ours may count: no checkpoint has those."""
        return max((int(state["step"]) for state in self.state.values()), default=0)

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        options = self.options
        if (options.mutant, options.at, options.at_rank) == ("bit", self.steps, this_rank()):
            parameter = self.named[BIT_PARAMETERS[options.parameter]]
            values = getattr(parameter, "_local_tensor", parameter).detach()
            # The sign is the bit 31, beyond what an int32 can have.
            mask = torch.tensor(1 << options.bit, dtype=torch.int64).to(torch.int32)
            values.view(-1).view(torch.int32)[0] ^= mask
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self.options.mutant != "zero_grad" or self.steps != self.options.at:
            super().zero_grad(set_to_none)


# Defects of what trains the workload


def _swap_samples(workload: MutantLine) -> None:
    """Swap the first samples of two ranks' shares of one batch."""
    options, shares = workload.options, BatchOrder.__iter__

    def swapped(order: BatchOrder) -> Iterator[Indices]:
        partners = {options.at_rank: 1, (options.at_rank + 1) % order.dp_size: -1}
        other_rank = (order.dp_rank + partners.get(order.dp_rank, 0)) % order.dp_size
        other = BatchOrder(
            samples=order.samples,
            batch_size=order.batch_size,
            seed=order.seed,
            dp_rank=other_rank,
            dp_size=order.dp_size,
        )
        other.next_step = order.next_step
        pairs = zip(shares(order), shares(other), strict=True)
        for step, (share, other_share) in enumerate(pairs, start=order.next_step + 1):
            if step == options.at:
                share[0] = other_share[0]
            yield share

    BatchOrder.__iter__ = swapped  # type: ignore[method-assign]


def _forget_epoch(workload: MutantLine) -> None:
    """Have every epoch go through the samples as the first does."""
    shares = BatchOrder.__iter__

    def same(order: BatchOrder) -> Iterator[Indices]:
        first = order.next_step
        order.next_step %= order.steps
        yield from shares(order)
        order.next_step = first

    BatchOrder.__iter__ = same  # type: ignore[method-assign]


def _sum_gradients(workload: MutantLine) -> None:
    """Have gradients summed up instead of averaged, from one step on."""
    compute = TrainStep.compute_gradients

    def summed(step: TrainStep, batch: Batch) -> Tensor:
        loss = compute(step, batch)
        if step.step + 1 >= workload.options.at:
            for group in step.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad *= dist.get_world_size()
        return loss

    TrainStep.compute_gradients = summed  # type: ignore[method-assign,assignment]


def _keep_own_buffers(workload: MutantLine) -> None:
    """Leave the statistics of batch norm to each rank, in training and in evaluations."""
    module: Any = strategies
    module.DistributedDataParallel = partial(
        module.DistributedDataParallel, broadcast_buffers=False
    )
    Strategy.before_evaluation = lambda *_: None  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[MutantLine], None]] = {
    "swapped samples": _swap_samples,
    "set_epoch forgotten": _forget_epoch,
    "summed gradients": _sum_gradients,
    "own batch norm": _keep_own_buffers,
}
