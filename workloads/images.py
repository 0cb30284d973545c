"""Where the images of the built-in workloads come from: `data: {source: ...}` chooses a class."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from workloads.labeled import Labeled, Row
from workloads.settings import Between, read_bytes

MNIST = (
    "curl --create-dirs --output-dir DIR -O"
    ' "https://ossci-datasets.s3.amazonaws.com/mnist/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"'
)
# Each of the 1,797 lines has the 64 grey levels (0 to 16) of an image of 8x8 pixels, then its label. The
# file is scikit-learn's (BSD 3-clause), of the UCI's "Optical Recognition of Handwritten Digits" (CC BY 4.0).
DIGITS = Path(__file__).with_name("digits.csv.gz")


@dataclass(frozen=True, kw_only=True)
class Digits(Labeled):
    """The 1,797 handwritten digits that scikit-learn ships, enlarged from 8x8 to 28x28 pixels."""

    source: Literal["digits"] = "digits"

    classes: ClassVar[int] = 10

    def samples(self) -> tuple[list[Row], list[Row]]:
        """Return the number and the digit of each image, none of them of a test set."""
        lines = read_bytes(DIGITS).decode().split()
        digits = [line.rpartition(",")[2] for line in lines]
        return list(enumerate(digits)), []


@dataclass(frozen=True, kw_only=True)
class Idx(Labeled):
    """A folder of IDX files, as MNIST and Fashion-MNIST are published.

    It holds `{train,t10k}-{images-idx3,labels-idx1}-ubyte`, each gzipped or not.
    """

    source: Literal["idx"] = "idx"
    path: Path
    classes: Annotated[int, Between(2, 256)] = 10  # labels are 0 to classes - 1

    def samples(self) -> tuple[list[Row], list[Row]]:
        """Return the number and the label of each image; those of `t10k` are numbered on."""
        _, train_path, _, test_path = self.files()
        _, train = read_idx(train_path, 1)
        _, test = read_idx(test_path, 1)
        labels = [*map(str, train), *map(str, test)]
        rows = list(enumerate(labels))
        return rows[: len(train)], rows[len(train) :]

    def files(self) -> list[Path]:
        """Return the images and the labels to train on, then those to test on; gzipped or not."""
        files = []
        for split in ("train", "t10k"):
            for kind in ("images-idx3", "labels-idx1"):
                path = self.path / f"{split}-{kind}-ubyte"
                compressed = path.with_name(f"{path.name}.gz")
                files.append(path if path.is_file() or not compressed.is_file() else compressed)
        return files

    def check(self) -> None:
        """Raise ValueError unless both splits are complete and fit each other."""
        files = self.files()
        if not self.path.is_dir():
            raise ValueError(f"{self.path}: found no such folder; to download MNIST: {MNIST}")
        for images_path, labels_path in (files[:2], files[2:]):
            (images, _, _), _ = read_idx(images_path, 3)
            (count,), labels = read_idx(labels_path, 1)
            if images != count:
                raise ValueError(
                    f"{labels_path}: found {count} labels; allowed: {images}, as images"
                )
            if max(labels) >= self.classes:
                allowed = f"0 to {self.classes - 1}, by classes"
                raise ValueError(f"{labels_path}: found label {max(labels)}; allowed: {allowed}")
        super().check()


def read_idx(path: Path, dimensions: int) -> tuple[tuple[int, ...], memoryview]:
    """Return the shape and the values of an IDX file of unsigned bytes.

    The format, which MNIST was published in: two zero bytes; 0x08 for unsigned bytes; the number of
    dimensions; each dimension as a big-endian 32-bit integer; then the values, the last dimension
    varying fastest.
    """
    content = read_bytes(path)
    magic = bytes([0, 0, 8, dimensions])
    header_bytes = 4 + 4 * dimensions
    if len(content) < header_bytes or content[:4] != magic:
        beginning = content[:4].hex() or "an empty file"
        raise ValueError(
            f"{path}: found {beginning} at the start; allowed: {magic.hex()}, as of IDX"
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header_bytes])
    values = memoryview(content)[header_bytes:]
    if not values or len(values) != math.prod(shape):
        sizes = " x ".join(map(str, shape))
        raise ValueError(f"{path}: found {len(values)} values; allowed: {sizes} and more than 0")
    return shape, values


ImageData = Digits | Idx
