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
    """MiB. Gradients come when activations are gone; as long as they are no larger, the two others make the peak."""

    parameters: int = 128
    activations: int = 384


class Hold(torch.autograd.Function):
    """The identity; from forward until its backward it holds `mib` MiB."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, mib: int) -> Tensor:
        ctx.save_for_backward(torch.ones(mib * MIB))
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return *gradients, None


class Heavy(nn.Module):
    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self.weight = nn.Parameter(torch.ones(options.parameters * MIB))

    def forward(self, inputs: Tensor) -> Tensor:
        value: Tensor = Hold.apply(self.weight.sum(), self.options.activations)  # type: ignore[no-untyped-call]
        return inputs.mean() + value * 1e-9


class Ballast(Workload):
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
