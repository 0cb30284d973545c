"""The small convolutional network."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
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


class ConvNet(nn.Module):
    """Convolutions 3x3 of stride 1, 2, 1, 2 with ReLU, the mean over the image, a linear layer.

    Strides take the place of pooling, a plain mean that of adaptive pooling: both are deterministic on every device.
    """

    def __init__(self, classes: int, options: CNNOptions) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for (inputs, outputs), stride in zip(pairwise(channels(options.width)), STRIDES, strict=True):
            layers.append(nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=not options.batch_norm))
            if options.batch_norm:
                layers.append(nn.BatchNorm2d(outputs))
            layers.append(nn.ReLU())
        self.features = nn.Sequential(*layers)
        self.dropout = nn.Dropout(options.dropout)
        self.head = nn.Linear(channels(options.width)[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [samples, classes] of images [samples, 1, height, width]."""
        result: Tensor = self.head(self.dropout(self.features(images).mean((2, 3))))
        return result


STRIDES = (1, 2, 1, 2)


def channels(width: int) -> tuple[int, ...]:
    return (1, width, 2 * width, 2 * width, 4 * width)


class CNN(Classifier):
    """Four convolutions and a linear layer, Adam and a one-cycle schedule, on images of 28x28 and larger."""

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
        return ConvNet(self.images.classes, self.options)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self.options.learning_rate, fused=True)

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        return one_cycle(optimizer, steps, self.options.warmup)

    def flops_per_sample(self) -> float:
        """Convolutions and the linear layer only; biases, norms, ReLU, means, loss and optimizer are not counted.

        A 3x3 convolution from c to d channels with h x w outputs costs 2 * 9cd * hw forward, the padding counted as if
        it were pixels; a linear layer from n to m features 2nm. Backward costs as much for the gradient of the weights
        and as much again for that of the input, which the first convolution does not need, as pixels are not trained.
        """
        height, width = self.images.size
        widths = channels(self.options.width)
        products = []
        for (inputs, outputs), stride in zip(pairwise(widths), STRIDES, strict=True):
            height, width = -(-height // stride), -(-width // stride)
            products.append(2 * 9 * inputs * outputs * height * width)
        products.append(2 * widths[-1] * self.images.classes)
        return 3 * sum(products) - products[0]
