"""A workload for tests whose training takes a known amount of memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workloads import Batch, Settings, Splits, Target, TensorSamples, Workload

MIB = 2**18  # fp32 numbers in a MiB
# Has torch take large tensors from pages of 2 MiB: to take gigabytes by 4 KiB is what costs the most.
HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """What is allocated, in MiB.

    Gradients are allocated when activations are gone. As long as they are no larger, parameters and
    activations make up the peak.
    """

    parameters: int = 64
    activations: int = 192
    layers: int = 1  # that share the activations


class KeepMemory(torch.autograd.Function):
    """The identity, which keeps `mib` MiB from its forward until its backward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, mib: int) -> Tensor:
        ctx.save_for_backward(torch.ones(mib * MIB))
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return *gradients, None


class Layer(nn.Module):
    """A layer with an activation of so many MiB."""

    def __init__(self, activations: int) -> None:
        super().__init__()
        self.activations = activations

    def forward(self, value: Tensor) -> Tensor:
        result: Tensor = KeepMemory.apply(value, self.activations)  # type: ignore[no-untyped-call]
        return result


class Heavy(nn.Module):
    """A model with parameters and activations of the given sizes."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(options.parameters * MIB))
        activations = options.activations // options.layers
        self.layers = nn.Sequential(*(Layer(activations) for _ in range(options.layers)))

    def forward(self, inputs: Tensor) -> Tensor:
        value: Tensor = self.layers(self.weight.sum())
        return inputs.mean() + value * 1e-9


class Ballast(Workload):
    """A workload that learns nothing."""

    Options = Options
    batch_size = 32
    target = Target("value", higher_is_better=False)

    def splits(self) -> Splits:
        # Before torch allocates its first tensor, which is when it reads the variable.
        os.environ[HUGE_PAGES] = "1"
        samples = TensorSamples((torch.ones(256, 1),))
        return Splits(train=samples, test=samples)

    def build_model(self) -> nn.Module:
        return Heavy(self.options)

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(model, Heavy)
        return list(model.layers)

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
