"""A workload of your own: its data, its model and its loss. Change what follows, and run it again."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from workloads import Batch, Count, Settings, Workload


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """What a sweep file may set under `options`, and vary as `options.NAME`."""

    width: Count = 64


class Net(nn.Module):
    """The model: any nn.Module."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.layers(inputs)
        return result


class Mine(Workload):
    """What is trained. The guide's page on workloads says what else it may define."""

    Options = Options
    batch_size = 64  # samples of a step, unless the sweep sets it

    def splits(self) -> Any:
        """Return the data: a torch Dataset, of which a tenth is drawn for testing.

        To choose the test set yourself, return Splits(train_set, test_set).
        """
        inputs = torch.randn(20_000, 8, generator=torch.Generator().manual_seed(0))
        targets = inputs[:, :1] * inputs[:, 1:2] + inputs[:, 2:3].sin()
        return TensorDataset(inputs, targets)

    def build_model(self) -> nn.Module:
        """Return a new model; the harness moves it to the device, and seeds it before."""
        return Net(self.options.width)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of a batch, a tuple of what the data set has for each sample."""
        inputs, targets = batch
        return nn.functional.mse_loss(model(inputs), targets)

    # Not defined, so there are defaults: `optimizer` (AdamW, 1e-3), `evaluate` and `metrics` (the loss
    # of the test set), `schedule` (a constant rate) and `flops_per_sample` (counted by torch).
