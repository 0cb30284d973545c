"""ResNet-50 (He et al. 2016, arXiv:1512.03385), with the stride in the 3x3 convolution.

That is the variant that torchvision and NVIDIA call v1.5. It has 25,557,032 parameters for 1,000
classes and takes images of any size.
"""

from __future__ import annotations

from torch import Tensor, nn

DEPTHS = (3, 4, 6, 3)  # blocks of each stage
WIDTHS = (64, 128, 256, 512)  # channels of the 3x3 convolution in a stage
EXPANSION = 4  # output channels of a block by those of its 3x3 convolution
STEM = 64  # channels after the first convolution


class Bottleneck(nn.Module):
    """Convolutions of 1x1, 3x3 and 1x1 with batch norm, added to what came in."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        """Build a block from `channels` to EXPANSION times `width` channels."""
        super().__init__()
        out_channels = EXPANSION * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, images: Tensor) -> Tensor:
        """Return features, shape (samples, EXPANSION * width, height / stride, width / stride)."""
        features = self.relu(self.norm1(self.conv1(images)))
        features = self.relu(self.norm2(self.conv2(features)))
        features = self.norm3(self.conv3(features))
        result: Tensor = self.relu(features + self.shortcut(images))
        return result


class ResNet50(nn.Module):
    """A stem, four stages of blocks, the mean over the image, and a linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, STEM, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(STEM),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        )
        blocks: list[nn.Module] = []
        channels = STEM
        for stage, (depth, width) in enumerate(zip(DEPTHS, WIDTHS, strict=True)):
            for number in range(depth):
                stride = 2 if stage and not number else 1
                blocks.append(Bottleneck(channels, width, stride))
                channels = EXPANSION * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)
        self.apply(_initialize)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape (samples, classes), of images of shape (samples, 3, height, width)."""
        features = self.blocks(self.stem(images))
        result: Tensor = self.head(features.mean((2, 3)))
        return result


def _initialize(module: nn.Module) -> None:
    """Initialize as He et al. 2015 (arXiv:1502.01852) do for ReLU.

    Each block begins as the identity, which helps with large batches (Goyal et al. 2017,
    arXiv:1706.02677, section 5.1).
    """
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    if isinstance(module, Bottleneck):
        nn.init.zeros_(module.norm3.weight)
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.01)
        nn.init.zeros_(module.bias)


def forward_flops(side: int, classes: int) -> tuple[float, float]:
    """Return the FLOPs of the forward on a square image, and those of its first convolution.

    A convolution with k x k kernels from c to d channels costs 2 k^2 c d for each pixel that it
    puts out. Norms, ReLU, pooling and additions are not counted.
    """
    side = -(-side // 2)
    first = 2.0 * 7 * 7 * 3 * STEM * side**2
    side = -(-side // 2)  # of the pooled image
    total, channels = first, STEM
    for stage, (depth, width) in enumerate(zip(DEPTHS, WIDTHS, strict=True)):
        for number in range(depth):
            out_side = -(-side // 2) if stage and not number else side
            out_channels = EXPANSION * width
            total += 2.0 * channels * width * side**2
            total += 2.0 * (9 * width * width + width * out_channels) * out_side**2
            if not number:
                total += 2.0 * channels * out_channels * out_side**2
            channels, side = out_channels, out_side
    return total + 2.0 * channels * classes, first
