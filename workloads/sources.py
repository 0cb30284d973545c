"""Where a workload's samples come from: settings told apart by `source`. Knows no torch, so planning stays instant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from workloads.files import blame, find_idx, read_idx, read_labelled
from workloads.options import Between, Settings

Seed = Annotated[int, Between(0, 2**32 - 1)]
Row = tuple[str, str]  # a text and its label


@dataclass(frozen=True, kw_only=True)
class Digits(Settings):
    """Scikit-learn's embedded 1,797 handwritten digits, enlarged from 8x8 to 28x28; 15% of each class is held out."""

    source: Literal["digits"] = "digits"
    split_seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class Idx(Settings):
    """A folder of MNIST-like IDX files: `{train,t10k}-{images-idx3,labels-idx1}-ubyte`, each gzipped or not."""

    source: Literal["idx"] = "idx"
    path: Path
    classes: Annotated[int, Between(2, 256)] = 10  # labels are 0 .. classes - 1

    def pair(self, split: Literal["train", "t10k"]) -> tuple[Path, Path]:
        """The files with the images and with the labels of a split."""
        return (
            find_idx(self.path, f"{split}-images-idx3-ubyte"),
            find_idx(self.path, f"{split}-labels-idx1-ubyte"),
        )

    def files(self) -> list[Path]:
        return [*self.pair("train"), *self.pair("t10k")]

    def check(self) -> None:
        with blame("path"):
            train, test = self._check_split("train"), self._check_split("t10k")
            if train[0] != test[0]:
                sizes = [" x ".join(map(str, size)) for size in (test[0], train[0])]
                raise ValueError(
                    f"{self.pair('t10k')[0]}: found images of {sizes[0]}; allowed: {sizes[1]}, as in training"
                )
            if unseen := sorted(test[1] - train[1]):
                raise ValueError(
                    f"{self.pair('t10k')[1]}: found label {unseen[0]}; allowed: the labels of training"
                )

    def _check_split(self, split: Literal["train", "t10k"]) -> tuple[tuple[int, ...], set[int]]:
        """Size of the images and the labels that occur."""
        images, labels = self.pair(split)
        (count, *size), _ = read_idx(images, 3)
        (labelled,), values = read_idx(labels, 1)
        if count != labelled:
            raise ValueError(
                f"{labels}: found {labelled} labels; allowed: {count}, one for each image of {images}"
            )
        found = set(values)
        if max(found) >= self.classes:
            raise ValueError(
                f"{labels}: found label {max(found)}; allowed: 0 to {self.classes - 1}, by classes"
            )
        return tuple(size), found


@dataclass(frozen=True, kw_only=True)
class Csv(Settings):
    """Labelled texts: a folder with train.csv and test.csv, or one file with `test` beside it.

    Without `test`, 15% of each class of the file is held out.
    """

    source: Literal["csv"] = "csv"
    path: Path
    test: Path | None = None
    text: str = "text"  # the column with the text
    label: str = "label"  # the column with the label
    split_seed: Seed = 0

    def files(self) -> list[Path]:
        """The training file, and the test file if there is one."""
        if self.path.is_dir():
            return [self.path / "train.csv", self.path / "test.csv"]
        return [self.path] if self.test is None else [self.path, self.test]

    def rows(self) -> tuple[list[Row], list[Row] | None]:
        """The rows to train on and the rows to test on; None if these are to be held out."""
        train, *test = (read_labelled(file, self.text, self.label) for file in self.files())
        return train, test[0] if test else None

    def check(self) -> None:
        if self.test is not None and self.path.is_dir():
            raise ValueError(
                f"test: found {self.test} beside the folder {self.path}; allowed: test beside a file only"
            )
        key = "path" if self.test is None else "path and test"
        with blame(key):
            train, test = self.rows()
            counts = Counter(label for _, label in train)
            if len(counts) < 2:
                raise ValueError(
                    f"{self.files()[0]}: found only the label {next(iter(counts))!r}; allowed: 2 labels or more"
                )
            if test is not None:
                self._check_seen(counts, test)
            elif single := [label for label, count in counts.items() if count == 1]:
                raise ValueError(
                    f"{self.path}: found one row labelled {single[0]!r}; allowed: 2 or more, to hold 15% out"
                )

    def _check_seen(self, seen: Collection[str], test: list[Row]) -> None:
        for number, (_, label) in enumerate(test, start=1):
            if label not in seen:
                raise ValueError(
                    f"{self.files()[1]}: found label {label!r} in row {number}; allowed: the labels of training"
                )


@dataclass(frozen=True, kw_only=True)
class Tickets(Settings):
    """Generated support tickets about billing, technical trouble or an account; 15% of each class is held out."""

    source: Literal["tickets"] = "tickets"
    rows: Annotated[int, Between(60)] = 4000
    seed: Seed = 0


ImageData = Digits | Idx
TextData = Csv | Tickets
