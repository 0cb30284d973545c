"""The multilayer perceptron on flattened images."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workloads.base import Classifier, Splits
from workloads.data import Images, load_images
from workloads.options import MLPOptions
from workloads.sources import ImageData


class Perceptron(nn.Module):
    """Linear layers, each but the last followed by batch norm (if asked for), ReLU and dropout."""

    def __init__(self, widths: tuple[int, ...], options: MLPOptions) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths[:-1]):
            layers.append(nn.Linear(inputs, outputs))
            if options.batch_norm:
                layers.append(nn.BatchNorm1d(outputs))
            layers.append(nn.ReLU())
            if options.dropout:
                layers.append(nn.Dropout(options.dropout))
        self.hidden = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-2], widths[-1])

    def forward(self, images: Tensor) -> Tensor:
        """Logits [samples, classes] of images [samples, 1, height, width]."""
        result: Tensor = self.head(self.hidden(images.flatten(1)))
        return result


class MLP(Classifier):
    """784-256-128-10 with dropout 0.2 and Adam on 28x28 images of ten classes: 235,146 parameters."""

    Options = MLPOptions
    Data: ClassVar = ImageData
    batch_size = 64
    options: MLPOptions
    data: ImageData

    @cached_property
    def images(self) -> Images:
        return load_images(self.data)

    @property
    def widths(self) -> tuple[int, ...]:
        """Features into and out of the layers, from pixels to classes."""
        height, width = self.images.size
        return (height * width, *self.options.hidden, self.images.classes)

    def splits(self) -> Splits:
        return self.images.splits

    def build_model(self) -> nn.Module:
        return Perceptron(self.widths, self.options)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self.options.lr, fused=True)

    def flops_per_sample(self) -> float:
        """Matrix products only; biases, norms, ReLU, dropout, loss and optimizer are not counted.

        A layer from n to m features costs 2nm forward. Backward costs 2nm for the gradient of the weights and 2nm for
        the gradient of the input, which the first layer does not need, as pixels are not trained:

            3 * sum over layers of 2nm - 2 * n_first * m_first
        """
        products = [2 * inputs * outputs for inputs, outputs in pairwise(self.widths)]
        return 3 * sum(products) - products[0]
