"""Loads the samples of the built-in workloads into memory: the same tensors in every process."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from workloads.base import Splits, TensorSamples
from workloads.files import read_idx
from workloads.shared import shared_tensors
from workloads.sources import (
    Csv,
    Digits,
    Idx,
    ImageData,
    Row,
    TextData,
    held_out_count,
    validation_count,
)
from workloads.tickets import tickets

DIGIT_SIDE = 8  # pixels of a side of scikit-learn's digits
DIGIT_LEVELS = 16  # their brightest grey level
ENLARGED_SIDE = 28  # pixels of a side that they are enlarged to, as MNIST has

Pixels = NDArray[np.uint8]  # grey levels 0 to 255, shape (samples, 1, height, width)


class LabeledPixels(NamedTuple):
    """One split of an image data set before normalization."""

    pixels: Pixels
    labels: Tensor  # int64, shape (samples,)

    def at(self, indices: Sequence[int]) -> LabeledPixels:
        """Return the samples at `indices`."""
        return LabeledPixels(self.pixels[indices], self.labels[indices])


@dataclass(frozen=True)
class Images:
    """Grey images and their labels, ready for training.

    The images are float32 of shape (samples, 1, height, width), normalized by the mean and the
    deviation of the training set; the labels are int64 of shape (samples,).
    """

    splits: Splits
    size: tuple[int, int]  # height and width in pixels
    classes: int


@dataclass(frozen=True)
class Texts:
    """Texts and their labels, int64 (texts,), numbered by the alphabetical order of the classes."""

    train: list[str]
    train_labels: Tensor
    test: list[str]
    test_labels: Tensor
    validation: list[str]  # empty without a validation set
    validation_labels: Tensor
    classes: tuple[str, ...]


def load_images(data: ImageData) -> Images:
    """Return the images of a source, of which processes may share the memory.

    Raises ValueError if its files are not what `data.check()` accepts.
    """
    tensors = shared_tensors(data, data.files(), lambda: _decode_images(data))
    validation = None
    if "validation_images" in tensors:
        validation = _samples(tensors, "validation")
    height, width = tensors["train_images"].shape[2:]
    return Images(
        splits=Splits(
            train=_samples(tensors, "train"), test=_samples(tensors, "test"), validation=validation
        ),
        size=(height, width),
        classes=10 if isinstance(data, Digits) else data.classes,
    )


def _samples(tensors: Mapping[str, Tensor], split: str) -> TensorSamples:
    """Return the samples of a split of what `_decode_images` returns."""
    return TensorSamples((tensors[f"{split}_images"], tensors[f"{split}_labels"]))


def _decode_images(data: Digits | Idx) -> dict[str, Tensor]:
    """Return `train_images`, `train_labels` and so on, normalized, of all splits that there are."""
    if isinstance(data, Digits):
        train, test = _load_digits(data)
    else:
        train, test = _load_idx(data, "train"), _load_idx(data, "t10k")
    splits = {"train": train, "test": test}
    if data.validation:
        labels = [str(label) for label in train.labels.tolist()]
        training, held_out = validation_split(labels, data.validation, data.draw_seed)
        splits["train"], splits["validation"] = train.at(training), train.at(held_out)
    table = _normalization_table(splits["train"].pixels)
    tensors: dict[str, Tensor] = {}
    for name, split in splits.items():
        tensors[f"{name}_images"] = torch.from_numpy(table[split.pixels])
        tensors[f"{name}_labels"] = split.labels
    return tensors


def load_texts(data: TextData) -> Texts:
    """Return the texts of a file, or generated ones.

    Raises ValueError if a file is not what `data.check()` accepts.
    """
    test: list[Row] | None
    if isinstance(data, Csv):
        train, test = data.rows()
    else:
        train, test = tickets(data.rows, data.seed), None
    if test is None:
        train, test = _split_rows(train, stratified(_labels(train), data.draw_seed))
    validation: list[Row] = []
    if data.validation:
        split = validation_split(_labels(train), data.validation, data.draw_seed)
        train, validation = _split_rows(train, split)
    classes = tuple(sorted({label for _, label in train}))
    return Texts(
        train=_texts(train),
        train_labels=_class_numbers(train, classes),
        test=_texts(test),
        test_labels=_class_numbers(test, classes),
        validation=_texts(validation),
        validation_labels=_class_numbers(validation, classes),
        classes=classes,
    )


def validation_split(
    labels: Sequence[str], fraction: float, seed: int
) -> tuple[list[int], list[int]]:
    """Return the indices of the samples to train on and of those to validate on, each ascending.

    `labels` are those of the training set, from which the test set is apart already. Raises
    ValueError if no class has two samples.
    """
    training, held_out = stratified(labels, seed, lambda count: validation_count(count, fraction))
    if not held_out:
        raise ValueError("validation: found no class with 2 samples; allowed: one or more")
    return training, held_out


def stratified(
    labels: Sequence[str], seed: int, count_held_out: Callable[[int], int] = held_out_count
) -> tuple[list[int], list[int]]:
    """Return the indices of the samples to train on and of those to hold out, each ascending.

    `count_held_out` takes the number of samples of a class, and returns how many to hold out. The draws follow
    from `seed` and the labels alone.
    """
    indices_by_label: defaultdict[str, list[int]] = defaultdict(list)
    for index, label in enumerate(labels):
        indices_by_label[label].append(index)
    rng = random.Random(seed)
    held_out: set[int] = set()
    for label in sorted(indices_by_label):
        indices = indices_by_label[label]
        held_out.update(rng.sample(indices, count_held_out(len(indices))))
    training = [index for index in range(len(labels)) if index not in held_out]
    return training, sorted(held_out)


def _labels(rows: Sequence[Row]) -> list[str]:
    """Return the label of each row."""
    return [label for _, label in rows]


def _split_rows(
    rows: Sequence[Row], split: tuple[list[int], list[int]]
) -> tuple[list[Row], list[Row]]:
    """Return the rows at either indices of a split."""
    training, held_out = split
    return [rows[index] for index in training], [rows[index] for index in held_out]


def _texts(rows: list[Row]) -> list[str]:
    """Return the rows' texts without their labels."""
    return [text for text, _ in rows]


def _class_numbers(rows: list[Row], classes: tuple[str, ...]) -> Tensor:
    """Return the position of each row's label in `classes`, int64, shape (rows,)."""
    numbers = {label: number for number, label in enumerate(classes)}
    return torch.tensor([numbers[label] for _, label in rows], dtype=torch.int64)


def _normalization_table(pixels: Pixels) -> NDArray[np.float32]:
    """Return (level - mean) / deviation for each of the 256 grey levels, shape (256,).

    The sums are of integers, so their result does not depend on the order of addition, and every
    machine gets the same bits.
    """
    total = int(pixels.sum(dtype=np.int64))
    total_of_squares = int(np.square(pixels, dtype=np.uint16).sum(dtype=np.int64))
    mean = total / pixels.size
    deviation = (total_of_squares / pixels.size - mean**2) ** 0.5
    return np.asarray((np.arange(256) - mean) / deviation, np.float32)


def _load_idx(data: Idx, split: Literal["train", "t10k"]) -> LabeledPixels:
    """Read the images and the labels of a split from their IDX files."""
    images_path, labels_path = data.pair(split)
    (count, height, width), content = read_idx(images_path, 3)
    pixels = np.frombuffer(content, np.uint8).reshape(count, 1, height, width)
    labels = np.frombuffer(read_idx(labels_path, 1)[1], np.uint8).astype(np.int64)
    return LabeledPixels(pixels, torch.from_numpy(labels))


def _load_digits(data: Digits) -> tuple[LabeledPixels, LabeledPixels]:
    """Return the training and the test split of scikit-learn's digits, enlarged to 28x28."""
    # Reading the packaged file takes a tenth of a second, importing sklearn.datasets over a second.
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ValueError(
            "source: digits are scikit-learn's, which is not installed: pip install scikit-learn"
        )
    path = Path(package.origin).parent / "datasets/data/digits.csv.gz"
    # Each row has the 64 grey levels (0 to 16) of an image, then its label.
    table = np.loadtxt(path, dtype=np.uint8, delimiter=",")
    small = torch.from_numpy(table[:, :-1].reshape(-1, 1, DIGIT_SIDE, DIGIT_SIDE)).float()
    small = small * (255 / DIGIT_LEVELS)
    enlarged = interpolate(small, size=(ENLARGED_SIDE, ENLARGED_SIDE), mode="bilinear")
    pixels = enlarged.round().to(torch.uint8).numpy()
    labels = torch.from_numpy(table[:, -1].astype(np.int64))
    training, held_out = stratified([str(label) for label in labels.tolist()], data.split_seed)
    digits = LabeledPixels(pixels, labels)
    return digits.at(training), digits.at(held_out)
