"""The small convolutional network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from workloads.cnn_settings import CNNOptions
from workloads.image_classifier import ImageClassifier
from workloads.schedules import one_cycle

KERNEL = 5  # rows and columns of a convolution's kernel
DENSE = 128  # features between the convolutions and the logits
FINAL_SIDE = 7  # rows and columns that the second pooling leaves of an image, approximately


@dataclass(frozen=True)
class Stage:
    """A convolution that keeps the size of the image, then mean pooling."""

    in_channels: int
    out_channels: int
    height: int  # of the image that comes in, in pixels
    width: int
    window: tuple[int, int]  # rows and columns that pooling reduces to one; they do not overlap


def stages(size: tuple[int, int], channels: int) -> tuple[Stage, Stage]:
    """Return the two stages for images of `size` = (height, width).

    They have `channels` and twice as many output channels. The first halves the sides of the image;
    the second pools what is left to about 7x7, whatever the size of the image.
    """
    height, width = size
    # Two poolings of 2x2 reduce sides of 28 pixels to 7; larger images get a larger second window.
    reference_side = 4 * FINAL_SIDE
    last_window = (2 * max(1, height // reference_side), 2 * max(1, width // reference_side))
    return (
        Stage(1, channels, height, width, (2, 2)),
        Stage(channels, 2 * channels, height // 2, width // 2, last_window),
    )


class ConvNet(nn.Module):
    """Two convolutions with ReLU and mean pooling, and two linear layers.

    Pooling has a fixed window because adaptive pooling is not deterministic on GPUs.
    """

    def __init__(self, size: tuple[int, int], classes: int, options: CNNOptions) -> None:
        """Build the network for images of `size` = (height, width)."""
        super().__init__()
        # The order in which layers are created is the order of the draws that initialize them:
        # another order gives other parameters from the same seed.
        layers: list[nn.Module] = []
        for stage in stages(size, options.width):
            layers.append(
                nn.Conv2d(stage.in_channels, stage.out_channels, KERNEL, padding=KERNEL // 2)
            )
            if options.batch_norm:
                layers.append(nn.BatchNorm2d(stage.out_channels))
            layers += [nn.ReLU(), nn.AvgPool2d(stage.window)]
        self.features = nn.Sequential(*layers)
        self.dense = nn.Linear(flattened_features(size, options.width), DENSE)
        self.head = nn.Linear(DENSE, classes)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape (samples, classes), of images of shape (samples, 1, height, width)."""
        features = self.dropout(self.features(images).flatten(1))
        hidden = self.dropout(nn.functional.relu(self.dense(features)))
        result: Tensor = self.head(hidden)
        return result


def flattened_features(size: tuple[int, int], channels: int) -> int:
    """Return the number of features of one sample that the convolutions pass to the linear layers."""
    last = stages(size, channels)[-1]
    rows = last.height // last.window[0]
    columns = last.width // last.window[1]
    return last.out_channels * rows * columns


class CNN(ImageClassifier):
    """Two convolutions and two linear layers, trained with Adam and a one-cycle schedule.

    The defaults have 215,370 parameters on 28x28 images of ten classes.
    """

    Options = CNNOptions
    batch_size = 64
    options: CNNOptions

    def build_model(self) -> nn.Module:
        """Return the network with torch's default initialization."""
        return ConvNet(self.image_size, self.data.classes, self.options)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return Adam in its fused implementation; `lr` is the peak of the schedule."""
        return torch.optim.Adam(model.parameters(), lr=self.options.lr, fused=True)

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """Return the one-cycle schedule."""
        return one_cycle(optimizer, steps, self.options.warmup)

    def flops_per_sample(self) -> float:
        """Return the FLOPs of the convolutions and linear layers of one sample.

        Biases, norms, ReLU, pooling, dropout, loss and optimizer are not counted.

        A convolution with k x k kernels from c to d channels on h x w pixels costs 2 k^2 c d h w
        forward, the padding counted like pixels. A linear layer from n to m features costs 2nm.
        Backward costs as much for the gradient of the weights, and as much again for the gradient
        of the input. The first convolution does not need the latter, since its input are pixels:

            3 * (sum over layers of forward) - forward of the first convolution
        """
        size, classes = self.image_size, self.data.classes
        products: list[int] = []
        for stage in stages(size, self.options.width):
            pixels = stage.height * stage.width
            products.append(2 * KERNEL**2 * stage.in_channels * stage.out_channels * pixels)
        products.append(2 * flattened_features(size, self.options.width) * DENSE)
        products.append(2 * DENSE * classes)
        return 3 * sum(products) - products[0]
