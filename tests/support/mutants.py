"""A workload with one planted defect: what makes trials part, at a known step and rank."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from tests.support.line import LineFit
from tests.support.line import Options as LineOptions
from workloads import Batch, Between, Splits

Mutant = Literal[
    "none",
    "learning rate",
    "bit",
    "dropped sample",
    "shifted samples",
    "zero_grad",
    "train mode in evaluation",
]


@dataclass(frozen=True, kw_only=True)
class MutantOptions(LineOptions):
    """Which defect the workload has, and from when on."""

    mutant: Mutant = "none"
    at: Annotated[int, Between(1)] = 1  # the step, counted from 1


def this_rank() -> int:
    """Return the rank of this process."""
    return int(os.environ.get("RANK", "0"))


@dataclass(frozen=True)
class MutantSamples:
    """Samples of which a batch is not what was asked for, from one batch on."""

    samples: Any
    mutant: str
    at: int
    fetched: list[int]  # batches so far, one number

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, indices: Sequence[int]) -> Batch:
        self.fetched[0] += 1
        asked = list(indices)
        if self.fetched[0] == self.at and self.mutant == "dropped sample":
            asked[-1] = asked[0]
        if self.fetched[0] == self.at and self.mutant == "shifted samples":
            asked = [(index + 1) % len(self.samples) for index in asked]
        batch: Batch = self.samples.batch(asked)
        return batch


class MutantAdam(torch.optim.Adam):
    """Adam that once keeps its gradients, or flips a bit of one parameter at rank 1."""

    def __init__(self, parameters: Any, options: MutantOptions) -> None:
        super().__init__(parameters, lr=0.01)
        self.options = options
        self.steps = 0

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.steps += 1
        is_now = self.steps == self.options.at
        if is_now and self.options.mutant == "bit" and this_rank() == 1:
            parameter = self.param_groups[0]["params"][0]
            values = getattr(parameter, "_local_tensor", parameter).detach()
            values.view(-1).view(torch.int32)[0] ^= 1
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self.options.mutant != "zero_grad" or self.steps != self.options.at:
            super().zero_grad(set_to_none)


class MutantLine(LineFit):
    """The line of `tests.support.line`, with the defect that its options name."""

    Options = MutantOptions
    options: MutantOptions

    def splits(self) -> Splits:
        splits = super().splits()
        if self.options.mutant not in ("dropped sample", "shifted samples"):
            return splits
        samples = MutantSamples(splits.train, self.options.mutant, self.options.at, [0])
        return replace(splits, train=samples)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return MutantAdam(model.parameters(), self.options)

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler | None:
        if self.options.mutant != "learning rate":
            return None
        return LambdaLR(optimizer, lambda step: 1 + 1e-6 * (step + 1 >= self.options.at))

    def evaluate(self, model: nn.Module, batch: Batch) -> Tensor:
        if self.options.mutant == "train mode in evaluation":
            model.train()
        return super().evaluate(model, batch)
