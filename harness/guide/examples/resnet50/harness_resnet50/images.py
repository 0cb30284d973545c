"""Images of ImageNet's layout and shape: from folders of JPEG files, or synthetic.

ImageNet has 1.3 million files. Its identity is that of `index.csv` beside them, which is written once:

    python -m harness_resnet50.images FOLDER
"""

from __future__ import annotations

import csv
import hashlib
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from PIL import Image

from workloads import Batch, Between, Count, Settings

INDEX = "index.csv"
COLUMNS = ["file", "bytes", "sha256"]
SPLITS = ("train", "val")
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's red, green and blue
RESIZED = 256 / 224  # the short side that an image is resized to for testing, by that of its crop
CROP_AREA = (0.08, 1.0)  # shares of an image that a training crop may have
TRIES = 10  # at a crop, before the middle of the image is taken
POOL = 256  # synthetic images that differ

Side = Annotated[int, Between(32)]


@dataclass(frozen=True, kw_only=True)
class Folder(Settings):
    """A folder with `train/<class>/*.JPEG`, `val/<class>/*.JPEG` and `index.csv`."""

    source: Literal["folder"] = "folder"
    path: Path
    side: Side = 224  # of a crop, in pixels

    def files(self) -> list[Path]:
        """Return the index, which has the digests of all other files."""
        return [self.path / INDEX]

    def check(self) -> None:
        """Raise ValueError unless there is an index with both splits of the same classes."""
        train, val = ({name for _, name in self.rows(split)} for split in SPLITS)
        if not train or train != val:
            raise ValueError(
                f"path: {self.path / INDEX}: found {len(train)} classes to train on and {len(val)}"
                " to test on; allowed: the same, at least one"
            )

    def rows(self, split: str) -> list[tuple[Path, str]]:
        """Return the files of a split with their classes, sorted; raises ValueError."""
        path = self.path / INDEX
        try:
            with path.open(newline="", encoding="utf-8") as file:
                names = [Path(row["file"]) for row in csv.DictReader(file)]
        except (OSError, KeyError) as error:
            raise ValueError(
                f"path: {path}: found {error}; allowed: what `python -m harness_resnet50.images"
                f" {self.path}` writes"
            ) from None
        chosen = sorted(name for name in names if name.parts[0] == split)
        return [(self.path / name, name.parts[1]) for name in chosen]

    @property
    def classes(self) -> int:
        """Return how many classes there are."""
        return len({name for _, name in self.rows("train")})

    def samples(self, split: Literal["train", "val"]) -> FolderSamples:
        """Return the images of a split."""
        return FolderSamples(self.rows(split), self.side, is_training=split == "train")


@dataclass(frozen=True, kw_only=True)
class Synthetic(Settings):
    """Noise of ImageNet's shape, to measure a training without a disk."""

    source: Literal["synthetic"] = "synthetic"
    side: Side = 224
    classes: Count = 1000
    train_samples: Count = 1_281_167
    val_samples: Count = 1000

    def samples(self, split: Literal["train", "val"]) -> SyntheticSamples:
        """Return the images of a split."""
        count = self.train_samples if split == "train" else self.val_samples
        return SyntheticSamples(count, self.side, self.classes)

    def conflict(self, axes: dict[str, Any]) -> str | None:
        """Return a conflict if no batch can be filled."""
        if axes["batch_size"] <= self.train_samples:
            return None
        return f"batch_size {axes['batch_size']} is more than the {self.train_samples} samples"


class SyntheticSamples:
    """Images of noise, each with the class that its number says, again and again the same few."""

    def __init__(self, count: int, side: int, classes: int) -> None:
        self._count = count
        self._classes = classes
        generator = torch.Generator().manual_seed(0)
        self._images = torch.randn(min(POOL, count), 3, side, side, generator=generator)

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return images float32 (samples, 3, side, side) and labels int64 (samples,)."""
        numbers = torch.as_tensor(indices) % len(self._images)
        return self._images[numbers], numbers % self._classes


class FolderSamples:
    """Images that are decoded when they are asked for; crops for training are drawn at random."""

    reads_files = True

    def __init__(self, rows: Sequence[tuple[Path, str]], side: int, *, is_training: bool) -> None:
        self._rows = rows
        self._side = side
        self._is_training = is_training
        names = sorted({name for _, name in rows})
        self._numbers = {name: number for number, name in enumerate(names)}

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return normalized images float32 (samples, 3, side, side) and labels int64 (samples,)."""
        pixels = np.stack([self._pixels(self._rows[index][0]) for index in indices])
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
        images = (images - _per_channel(MEAN)) / _per_channel(DEVIATION)
        labels = [self._numbers[self._rows[index][1]] for index in indices]
        return images, torch.tensor(labels)

    def _pixels(self, path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return a crop of an image, shape (side, side, 3)."""
        with Image.open(path) as file:
            image = file.convert("RGB")
        box = _random_box(*image.size) if self._is_training else _middle_box(*image.size)
        image = image.resize((self._side, self._side), Image.Resampling.BILINEAR, box)
        if self._is_training and random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(image)


Box = tuple[float, float, float, float]  # left, upper, right and lower, in pixels


def _random_box(width: int, height: int) -> Box:
    """Return a part of an image of any area and of 3:4 to 4:3 (Szegedy et al. 2014, arXiv:1409.4842).

    The harness seeds `random` for each batch, so that a trial has the same crops again.
    """
    for _ in range(TRIES):
        area = width * height * random.uniform(*CROP_AREA)
        aspect = (4 / 3) ** random.uniform(-1, 1)
        box_width, box_height = (area * aspect) ** 0.5, (area / aspect) ** 0.5
        if box_width <= width and box_height <= height:
            left = random.uniform(0, width - box_width)
            upper = random.uniform(0, height - box_height)
            return left, upper, left + box_width, upper + box_height
    return _middle_box(width, height)


def _middle_box(width: int, height: int) -> Box:
    """Return the square in the middle that a crop is of an image resized to RESIZED of it."""
    side = min(width, height) / RESIZED
    left, upper = (width - side) / 2, (height - side) / 2
    return left, upper, left + side, upper + side


def _per_channel(values: tuple[float, float, float]) -> torch.Tensor:
    """Return a number for each color, shape (3, 1, 1)."""
    return torch.tensor(values).view(3, 1, 1)


def write_index(folder: Path) -> int:
    """Write `index.csv` of a folder; return how many images it has."""
    rows = []
    for split in SPLITS:
        for path in sorted((folder / split).glob("*/*")):
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            rows.append([path.relative_to(folder).as_posix(), len(content), digest])
    with (folder / INDEX).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerows([COLUMNS, *rows])
    return len(rows)


if __name__ == "__main__":
    (argument,) = sys.argv[1:]
    print(f"{write_index(Path(argument))} images")
