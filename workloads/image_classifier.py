"""What the classifiers of images have in common: the images as tensors, the same in every process."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from workloads.base import Classifier, Splits, TensorSamples
from workloads.images import DIGITS, Digits, Idx, ImageData, read_idx

DIGIT_SIDE = 8  # pixels of a side of the digits
DIGIT_LEVELS = 16  # their brightest grey level
ENLARGED_SIDE = 28  # pixels of a side that they are enlarged to, as MNIST has

Pixels = NDArray[np.uint8]  # grey levels 0 to 255, shape (samples, 1, height, width)


class ImageClassifier(Classifier):
    """A classifier of grey images, normalized by the mean and the deviation of the training set."""

    Data: ClassVar = ImageData
    data: ImageData

    @cached_property
    def samples(self) -> dict[str, TensorSamples]:
        """The samples of each split by its name, loaded on first use."""
        return load_images(self.data)

    @property
    def image_size(self) -> tuple[int, int]:
        """Return height and width of an image in pixels."""
        images, _ = self.samples["train"].tensors
        height, width = images.shape[2:]
        return height, width

    def splits(self) -> Splits:
        """Return images float32 (samples, 1, height, width) with labels int64 (samples,)."""
        return Splits(**self.samples)


def load_images(data: ImageData) -> dict[str, TensorSamples]:
    """Return the normalized images and the labels of each split by its name.

    Raises ValueError if the files are not what `data.check()` accepts.
    """
    pixels = _load_digits() if isinstance(data, Digits) else _load_idx(data)
    splits = data.split()
    trained, _ = zip(*splits["train"], strict=True)
    table = _normalization_table(pixels[list(trained)])
    samples = {}
    for name, rows in splits.items():
        numbers, labels = zip(*rows, strict=True)
        images = torch.from_numpy(table[pixels[list(numbers)]])
        digits = torch.tensor([int(label) for label in labels])
        samples[name] = TensorSamples((images, digits))
    return samples


def _normalization_table(pixels: Pixels) -> NDArray[np.float32]:
    """Return (level - mean) / deviation for each of the 256 grey levels, shape (256,).

    The sums are of integers, so their result does not depend on the order of addition, and every
    machine gets the same bits.
    """
    total = int(pixels.sum(dtype=np.int64))
    squares = np.square(pixels, dtype=np.uint16)
    total_of_squares = int(squares.sum(dtype=np.int64))
    mean = total / pixels.size
    deviation = (total_of_squares / pixels.size - mean**2) ** 0.5
    levels = (np.arange(256) - mean) / deviation
    return np.asarray(levels, np.float32)


def _load_idx(data: Idx) -> Pixels:
    """Read the images to train on, then those to test on, from their IDX files."""
    parts = []
    for path in data.files()[::2]:
        (count, height, width), content = read_idx(path, 3)
        images = np.frombuffer(content, np.uint8)
        parts.append(images.reshape(count, 1, height, width))
    return np.concatenate(parts)


def _load_digits() -> Pixels:
    """Return the digits, enlarged to 28x28."""
    table = torch.from_numpy(np.loadtxt(DIGITS, np.float32, delimiter=","))
    images = table[:, :-1].view(-1, 1, DIGIT_SIDE, DIGIT_SIDE)
    small = images * (255 / DIGIT_LEVELS)
    enlarged = interpolate(small, size=(ENLARGED_SIDE, ENLARGED_SIDE), mode="bilinear")
    pixels: Pixels = enlarged.round().to(torch.uint8).numpy()
    return pixels
