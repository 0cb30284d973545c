"""The multilayer perceptron on flattened images."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from workloads.image_classifier import ImageClassifier
from workloads.mlp_settings import MLPOptions


class Perceptron(nn.Module):
    """Linear layers, each but the last followed by batch norm (an option), ReLU and dropout."""

    def __init__(self, widths: tuple[int, ...], options: MLPOptions) -> None:
        """Build layers between `widths`: pixels, the hidden widths, classes."""
        super().__init__()
        # The order in which layers are created is the order of the draws that initialize them:
        # another order gives other parameters from the same seed.
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
        """Return logits, shape (samples, classes), of images of shape (samples, 1, height, width)."""
        features = self.hidden(images.flatten(1))
        result: Tensor = self.head(features)
        return result


class MLP(ImageClassifier):
    """Linear layers of 784-256-128-10 features with dropout 0.2, trained with Adam.

    These are the defaults on 28x28 images of ten classes: 235,146 parameters.
    """

    Options = MLPOptions
    batch_size = 64
    options: MLPOptions

    @property
    def widths(self) -> tuple[int, ...]:
        """Features between the layers: pixels, the hidden widths, classes."""
        height, width = self.image_size
        return (height * width, *self.options.hidden, self.data.classes)

    def build_model(self) -> nn.Module:
        """Return the perceptron with torch's default initialization."""
        return Perceptron(self.widths, self.options)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return Adam in its fused implementation, at a constant learning rate."""
        return Adam(model.parameters(), lr=self.options.lr, fused=True)

    def flops_per_sample(self) -> float:
        """Return the FLOPs of the matrix products of one sample.

        Biases, norms, ReLU, dropout, loss and optimizer are not counted.

        A layer from n to m features costs 2nm forward: nm multiply-adds. Backward costs 2nm for the
        gradient of the weights and 2nm for the gradient of the input. The first layer does not need
        the latter, since its input are pixels. In total:

            3 * (sum over layers of 2nm) - 2nm of the first layer
        """
        products = [2 * inputs * outputs for inputs, outputs in pairwise(self.widths)]
        return 3 * sum(products) - products[0]
