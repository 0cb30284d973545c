"""The small convolutional network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from workloads.base import Classifier, Splits
from workloads.data import Images, load_images
from workloads.options import CNNOptions
from workloads.schedules import one_cycle
from workloads.sources import ImageData

KERNEL = 5
DENSE = 128  # width of the layer between the convolutions and the logits


@dataclass(frozen=True)
class Stage:
    """A convolution that keeps the size of the image, then the mean over windows that do not overlap."""

    inputs: int
    outputs: int
    height: int
    width: int
    window: tuple[int, int]


def stages(size: tuple[int, int], width: int) -> tuple[Stage, Stage]:
    """Stages with `width` channels and twice as many; they bring an image to about 7x7, whatever its size."""
    height, breadth = size
    last = (2 * max(1, height // 28), 2 * max(1, breadth // 28))
    return Stage(1, width, height, breadth, (2, 2)), Stage(
        width, 2 * width, height // 2, breadth // 2, last
    )


class ConvNet(nn.Module):
    """Two convolutions with ReLU and mean pooling, and two linear layers.

    Plain mean pooling, unlike adaptive pooling, is deterministic on every device.
    """

    def __init__(self, size: tuple[int, int], classes: int, options: CNNOptions) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for stage in stages(size, options.width):
            layers.append(nn.Conv2d(stage.inputs, stage.outputs, KERNEL, padding=KERNEL // 2))
            if options.batch_norm:
                layers.append(nn.BatchNorm2d(stage.outputs))
            layers += [nn.ReLU(), nn.AvgPool2d(stage.window)]
        self.features = nn.Sequential(*layers)
        self.dense = nn.Linear(flattened(size, options.width), DENSE)
        self.head = nn.Linear(DENSE, classes)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [samples, classes] of images [samples, 1, height, width]."""
        features = self.dropout(self.features(images).flatten(1))
        result: Tensor = self.head(self.dropout(nn.functional.relu(self.dense(features))))
        return result


def flattened(size: tuple[int, int], width: int) -> int:
    """Features that the convolutions hand to the linear layers."""
    last = stages(size, width)[-1]
    return last.outputs * (last.height // last.window[0]) * (last.width // last.window[1])


class CNN(Classifier):
    """Two convolutions, two linear layers, Adam and a one-cycle schedule; 215,370 parameters on 28x28, 10 classes."""

    Options = CNNOptions
    Data: ClassVar = ImageData
    batch_size = 64
    options: CNNOptions
    data: ImageData

    @cached_property
    def images(self) -> Images:
        return load_images(self.data)

    def splits(self) -> Splits:
        return self.images.splits

    def build_model(self) -> nn.Module:
        return ConvNet(self.images.size, self.images.classes, self.options)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self.options.lr, fused=True)

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        return one_cycle(optimizer, steps, self.options.warmup)

    def flops_per_sample(self) -> float:
        """Convolutions and linear layers only; biases, norms, ReLU, pooling, loss and optimizer are not counted.

        A convolution with kernels of k x k from c to d channels on h x w pixels costs 2k^2cd * hw forward, the padding
        counted as if it were pixels; a linear layer from n to m features 2nm. Backward costs as much for the gradient
        of the weights and as much again for that of the input, which the first convolution does not need, as pixels
        are not trained.
        """
        size, width, classes = self.images.size, self.options.width, self.images.classes
        products = [
            2 * KERNEL**2 * s.inputs * s.outputs * s.height * s.width for s in stages(size, width)
        ]
        products += [2 * flattened(size, width) * DENSE, 2 * DENSE * classes]
        return 3 * sum(products) - products[0]
