"""A workload for tests whose training takes a known amount of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workloads import Batch, Settings, Splits, Target, TensorSamples, Workload

MIB = 2**18  # fp32 numbers in a MiB


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """What is allocated, in MiB.

    Gradients are allocated when activations are gone. As long as they are no larger, parameters and
    activations make up the peak.
    """

    parameters: int = 128
    activations: int = 384


class KeepMemory(torch.autograd.Function):
    """The identity, which keeps `mib` MiB from its forward until its backward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, mib: int) -> Tensor:
        ctx.save_for_backward(torch.ones(mib * MIB))
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return *gradients, None


class Heavy(nn.Module):
    """A model with a parameter and an activation of the given sizes."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self.weight = nn.Parameter(torch.ones(options.parameters * MIB))

    def forward(self, inputs: Tensor) -> Tensor:
        total = self.weight.sum()
        value: Tensor = KeepMemory.apply(total, self.options.activations)  # type: ignore[no-untyped-call]
        return inputs.mean() + value * 1e-9


class Ballast(Workload):
    """A workload that learns nothing."""

    Options = Options
    batch_size = 32
    target = Target("value", higher_is_better=False)

    def splits(self) -> Splits:
        samples = TensorSamples((torch.ones(256, 1),))
        return Splits(train=samples, test=samples)

    def build_model(self) -> nn.Module:
        return Heavy(self.options)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        value: Tensor = model(*batch)
        return value

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)

    def evaluate(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(*batch).expand(len(batch[0]), 1)  # type: ignore[no-any-return]

    def metrics(self, rows: Tensor) -> dict[str, float]:
        return {"value": float(rows.mean())}

    def flops_per_sample(self) -> float:
        return 0.0
