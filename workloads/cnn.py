"""The small convolutional network."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from workloads.cnn_settings import CNNOptions
from workloads.image_classifier import ImageClassifier
from workloads.schedules import one_cycle

KERNEL = 5  # rows and columns of a convolution's kernel
DENSE = 128  # features between the convolutions and the logits
REFERENCE_SIDE = 28  # pixels of a side that two poolings of 2x2 reduce to 7


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
        windows = [(2, 2), last_window(size)]
        inputs, outputs = 1, options.width
        for window in windows:
            layers.append(nn.Conv2d(inputs, outputs, KERNEL, padding=KERNEL // 2))
            if options.batch_norm:
                layers.append(nn.BatchNorm2d(outputs))
            layers += [nn.ReLU(), nn.AvgPool2d(window)]
            inputs, outputs = outputs, 2 * outputs
        self.features = nn.Sequential(*layers)
        flattened = flattened_features(size, options.width)
        self.dense = nn.Linear(flattened, DENSE)
        self.head = nn.Linear(DENSE, classes)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape (samples, classes), of images of shape (samples, 1, height, width)."""
        features = self.features(images).flatten(1)
        hidden = self.dense(self.dropout(features)).relu()
        result: Tensor = self.head(self.dropout(hidden))
        return result


def last_window(size: tuple[int, int]) -> tuple[int, int]:
    """Return the rows and columns that the second pooling reduces to one.

    The first halves the sides of the image; the second pools what is left to about 7x7, whatever the
    size of the image.
    """
    height, width = size
    rows = 2 * max(1, height // REFERENCE_SIDE)
    columns = 2 * max(1, width // REFERENCE_SIDE)
    return rows, columns


def flattened_features(size: tuple[int, int], channels: int) -> int:
    """Return the number of features of one sample that the convolutions pass to the linear layers."""
    height, width = size
    rows, columns = last_window(size)
    pooled_height, pooled_width = height // 2 // rows, width // 2 // columns
    return 2 * channels * pooled_height * pooled_width


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
        return Adam(model.parameters(), lr=self.options.lr, fused=True)

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
        height, width = self.image_size
        channels = self.options.width
        first = 2 * KERNEL**2 * channels * height * width
        halved = (height // 2) * (width // 2)
        second = 2 * KERNEL**2 * channels * 2 * channels * halved
        flattened = flattened_features(self.image_size, channels)
        dense = 2 * flattened * DENSE + 2 * DENSE * self.data.classes
        return 3 * (first + second + dense) - first
