"""A workload with one cause of slowness, which the option `plant` names; tests copy this file."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workloads.base import Batch, Samples, Splits
from workloads.mlp import MLP
from workloads.mlp_settings import MLPOptions

PACKAGE = "upgraded"  # of stacks in which its work takes a different time
ZEROS = torch.zeros(1_000_000)
ITEMS = 400
WIDE = 512
SLEEP = 0.002  # seconds


@dataclass(frozen=True, kw_only=True)
class PlantedOptions(MLPOptions):
    plant: str = "nothing"


class SlowSamples:
    """Samples that take longer to fetch."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, indices: Any) -> Batch:
        time.sleep(SLEEP)
        return self.samples.batch(indices)


class Broken(nn.Module):
    """A model whose graph torch.compile has to break."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        images = images * 1.0
        torch._dynamo.graph_break()
        outputs: Tensor = self.model(images)
        return outputs


class Planted(MLP):
    Options = PlantedOptions
    options: PlantedOptions

    def splits(self) -> Splits:
        splits = super().splits()
        if self.options.plant == "loader":
            return Splits(SlowSamples(splits.train), splits.test)
        return splits

    def build_model(self) -> nn.Module:
        model = super().build_model()
        return Broken(model) if self.options.plant == "graph break" else model

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss = super().loss(model, batch)
        plant = self.options.plant
        if plant == "copy":
            ZEROS.clone()
        elif plant == "synchronization":
            for _ in range(ITEMS):
                loss.item()
        elif plant == "operator":
            torch.ones(WIDE, WIDE).cumsum(dim=0)
        elif plant == "all-reduce":
            dist.all_reduce(ZEROS)
        elif plant == "package":
            import_module(PACKAGE).work()
        return loss
