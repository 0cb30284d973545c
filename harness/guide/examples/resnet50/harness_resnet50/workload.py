"""ResNet-50 with the recipe of Goyal et al. 2017 (arXiv:1706.02677)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from workloads import Batch, Classifier, Fraction, Rate, Settings, Splits, one_cycle

from .images import Folder, Synthetic
from .model import ResNet50, forward_flops


@dataclass(frozen=True, kw_only=True)
class ResNet50Options(Settings):
    """The options of the recipe."""

    # The peak for a global batch of 256; `lr_scaling: linear` multiplies it with larger ones.
    lr: Rate = 0.1
    warmup: Fraction = 5 / 90  # the share of the steps in which the rate rises, before a cosine
    weight_decay: float = 1e-4  # of the kernels; norms and biases have none
    label_smoothing: Fraction = 0.1


class ResNet50Workload(Classifier):
    """ResNet-50, SGD with momentum 0.9, a warm-up and a cosine: 25,557,032 parameters."""

    Options = ResNet50Options
    Data: ClassVar = Folder | Synthetic
    batch_size = 256
    options: ResNet50Options
    data: Folder | Synthetic

    @cached_property
    def classes(self) -> int:
        """Return how many classes there are."""
        return self.data.classes

    def splits(self) -> Splits:
        """Return the training images and those of `val`, to test on."""
        return Splits(self.data.samples("train"), self.data.samples("val"))

    def build_model(self) -> nn.Module:
        """Return the network."""
        return ResNet50(self.classes)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy with smoothed labels."""
        images, labels = batch
        return nn.functional.cross_entropy(
            model(images), labels, label_smoothing=self.options.label_smoothing
        )

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return SGD with momentum, which decays matrices and kernels only."""
        decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
        undecayed = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
        groups = [
            {"params": decayed, "weight_decay": self.options.weight_decay},
            {"params": undecayed, "weight_decay": 0.0},
        ]
        return torch.optim.SGD(groups, lr=self.options.lr, momentum=0.9)

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """Return a linear warm-up and a cosine to 0."""
        return one_cycle(optimizer, steps, self.options.warmup)

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return the 16 blocks."""
        return list(model.get_submodule("blocks").children())

    def flops_per_sample(self) -> float:
        """Return 24.5 GFLOP for 224 pixels: three times forward, without a gradient of the pixels."""
        forward, stem = forward_flops(self.data.side, self.classes)
        return 3 * forward - stem
