"""Loads the samples of the built-in workloads into memory: the same tensors in every process."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from workloads.base import Splits, TensorSamples
from workloads.files import read_idx
from workloads.sources import Csv, Digits, Idx, ImageData, Row, TextData
from workloads.tickets import tickets

HELD_OUT = 0.15  # part of each class that is tested on where a source has no test set of its own
SIDE = 28  # pixels of a side that the digits are enlarged to

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Images:
    """Grey images, float32 [samples, 1, height, width], normalised by the training set; labels int64 [samples]."""

    splits: Splits
    size: tuple[int, int]
    classes: int


@dataclass(frozen=True)
class Texts:
    """Texts and their labels, int64 [samples], numbered in the alphabetical order of the classes."""

    train: list[str]
    train_labels: Tensor
    test: list[str]
    test_labels: Tensor
    classes: tuple[str, ...]


def load_images(data: ImageData) -> Images:
    """Reads the files; raises ValueError if they are not what `data.check()` accepts."""
    train, test = _digits(data) if isinstance(data, Digits) else _idx(data)
    classes = 10 if isinstance(data, Digits) else data.classes
    table = _normalising(train[0])
    splits = Splits(
        *(
            TensorSamples((torch.from_numpy(table[pixels]), labels))
            for pixels, labels in (train, test)
        )
    )
    return Images(splits, (train[0].shape[2], train[0].shape[3]), classes)


def load_texts(data: TextData) -> Texts:
    """Reads the file or generates the texts; raises ValueError if a file is not what `data.check()` accepts."""
    rows, test = data.rows() if isinstance(data, Csv) else (tickets(data.rows, data.seed), None)
    train = rows
    if test is None:
        seed = data.split_seed if isinstance(data, Csv) else data.seed
        kept, held = stratified([label for _, label in rows], seed)
        train, test = [rows[i] for i in kept], [rows[i] for i in held]
    classes = tuple(sorted({label for _, label in train}))
    return Texts(*_numbered(train, classes), *_numbered(test, classes), classes)


def stratified(labels: Sequence[str], seed: int) -> tuple[list[int], list[int]]:
    """Rows to keep and rows to hold out, each ascending: of every class the part HELD_OUT, at least one row."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for row, label in enumerate(labels):
        rows[label].append(row)
    rng = random.Random(seed)
    held: set[int] = set()
    for label in sorted(rows):
        held.update(rng.sample(rows[label], max(1, round(HELD_OUT * len(rows[label])))))
    return [row for row in range(len(labels)) if row not in held], sorted(held)


def _numbered(rows: list[Row], classes: tuple[str, ...]) -> tuple[list[str], Tensor]:
    number = {label: i for i, label in enumerate(classes)}
    return [text for text, _ in rows], torch.tensor([number[label] for _, label in rows])


def _normalising(pixels: Pixels) -> NDArray[np.float32]:
    """A table from grey level to (level - mean) / deviation; summed as integers, so no order of adding shows."""
    total = int(pixels.sum(dtype=np.int64))
    squares = int(np.square(pixels, dtype=np.uint16).sum(dtype=np.int64))
    mean = total / pixels.size
    deviation = (squares / pixels.size - mean**2) ** 0.5
    return np.asarray((np.arange(256) - mean) / deviation, np.float32)


def _idx(data: Idx) -> tuple[tuple[Pixels, Tensor], tuple[Pixels, Tensor]]:
    return _idx_pair(*data.pair("train")), _idx_pair(*data.pair("t10k"))


def _idx_pair(images: Path, labels: Path) -> tuple[Pixels, Tensor]:
    (count, height, width), pixels = read_idx(images, 3)
    numbers = np.frombuffer(read_idx(labels, 1)[1], np.uint8).astype(np.int64)
    return np.frombuffer(pixels, np.uint8).reshape(count, 1, height, width), torch.from_numpy(
        numbers
    )


def _digits(data: Digits) -> tuple[tuple[Pixels, Tensor], tuple[Pixels, Tensor]]:
    # Reading the packaged file takes a tenth of a second; importing sklearn.datasets for it takes more than one.
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ValueError(
            "source: digits are scikit-learn's, which is not installed: pip install scikit-learn"
        )
    rows = np.loadtxt(
        Path(package.origin).parent / "datasets/data/digits.csv.gz", dtype=np.uint8, delimiter=","
    )
    small = torch.from_numpy(rows[:, :-1].reshape(-1, 1, 8, 8)).float() * (255 / 16)
    pixels = interpolate(small, size=(SIDE, SIDE), mode="bilinear").round().to(torch.uint8).numpy()
    labels = torch.from_numpy(rows[:, -1].astype(np.int64))
    kept, held = stratified([str(label) for label in labels.tolist()], data.split_seed)
    return (pixels[kept], labels[kept]), (pixels[held], labels[held])
