"""Defines where the samples of the built-in workloads come from.

In a sweep file, `data: {source: ...}` chooses one of these classes. This module imports no torch,
so that planning a sweep takes no noticeable time.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from workloads.files import errors_naming, find_idx, read_bytes, read_idx, read_labeled
from workloads.options import Between, Fraction, Settings
from workloads.tickets import tickets

Seed = Annotated[int, Between(0, 2**32 - 1)]
Row = tuple[str, str]  # a text and its label
# The fraction of each class to test on where a source has no test set.
HELD_OUT = 0.15
PYTHON_TOPICS = "pydoc_data.topics"
DIGITS_PER_CLASS = (178, 182, 177, 183, 181, 182, 181, 179, 174, 180)  # of 0 to 9


@dataclass(frozen=True, kw_only=True)
class Source(Settings):
    """Base of the settings that know how many samples there are to train on.

    The share `validation` of each class is taken out of the training samples, by draws that follow
    from the seed of the split.
    """

    validation: Fraction = 0.0  # 0: there is no validation set

    @property
    def draw_seed(self) -> int:
        """Return the seed of the draws that hold samples out."""
        raise NotImplementedError

    @property
    def has_test_set(self) -> bool:
        """Return whether the source comes with a test set, so that none is drawn."""
        return False

    def identity(self) -> dict[str, Any]:
        """Return the settings without their paths, and without the seed of draws that nobody makes."""
        values = super().identity()
        if self.has_test_set and not self.validation:
            values.pop("split_seed", None)
        return values

    def class_counts(self) -> Mapping[str, int]:
        """Return how many samples of each class are not in the test set; files are as `check` wants."""
        raise NotImplementedError

    @cached_property  # cells of a sweep ask again and again, and files have to be read
    def training_samples(self) -> int:
        """Return the number of samples to train on; the files are as `check` wants them."""
        counts = self.class_counts()
        held_out = sum(validation_count(count, self.validation) for count in counts.values())
        return sum(counts.values()) - held_out

    def conflict(self, axes: dict[str, Any]) -> str | None:
        """Return a conflict if no batch of the size that the axes ask for can be filled."""
        return _unfilled_batch(axes["batch_size"], self.training_samples)


def _unfilled_batch(batch_size: int, samples: int) -> str | None:
    """Return a conflict if there are fewer samples than a batch has."""
    if batch_size <= samples:
        return None
    return f"batch_size {batch_size} is more than the {samples} training samples"


def held_out_count(count: int) -> int:
    """Return how many of a class's samples are held out: the fraction HELD_OUT, at least one."""
    return max(1, round(HELD_OUT * count))


def validation_count(count: int, fraction: float) -> int:
    """Return how many of a class's training samples are taken for validation.

    At least one, but none of a class that has a single sample: it would not be trained at all.
    """
    if not fraction:
        return 0
    return min(count - 1, max(1, round(fraction * count)))


def _without_held_out(labels: Iterable[str]) -> dict[str, int]:
    """Return how many samples of each label are left when the test set is held out."""
    counts = Counter(labels)
    return {label: count - held_out_count(count) for label, count in counts.items()}


@dataclass(frozen=True, kw_only=True)
class Digits(Source):
    """The 1,797 handwritten digits that scikit-learn ships, enlarged from 8x8 to 28x28 pixels.

    15% of each class is held out for testing.
    """

    source: Literal["digits"] = "digits"
    split_seed: Seed = 0

    @property
    def draw_seed(self) -> int:
        """Return the seed of the split."""
        return self.split_seed

    def class_counts(self) -> Mapping[str, int]:
        """Return how many of each digit are left, whatever the seed of the split."""
        counts = enumerate(DIGITS_PER_CLASS)
        return {str(digit): count - held_out_count(count) for digit, count in counts}


@dataclass(frozen=True, kw_only=True)
class Idx(Source):
    """A folder of IDX files, as MNIST and Fashion-MNIST are published.

    It holds `{train,t10k}-{images-idx3,labels-idx1}-ubyte`, each gzipped or not.
    """

    source: Literal["idx"] = "idx"
    path: Path
    classes: Annotated[int, Between(2, 256)] = 10  # labels are 0 to classes - 1
    split_seed: Seed = 0  # of the draw that holds validation samples out
    has_test_set = True

    @property
    def draw_seed(self) -> int:
        """Return the seed of the split."""
        return self.split_seed

    def pair(self, split: Literal["train", "t10k"]) -> tuple[Path, Path]:
        """Return the files with the images and with the labels of a split."""
        return (
            find_idx(self.path, f"{split}-images-idx3-ubyte"),
            find_idx(self.path, f"{split}-labels-idx1-ubyte"),
        )

    def class_counts(self) -> Mapping[str, int]:
        """Return how many samples of each class the training split has."""
        _, labels_path = self.pair("train")
        _, labels = read_idx(labels_path, 1)
        return {str(label): count for label, count in Counter(labels).items()}

    def files(self) -> list[Path]:
        """Return the four files."""
        return [*self.pair("train"), *self.pair("t10k")]

    def check(self) -> None:
        """Raise ValueError unless both splits are complete and fit each other."""
        with errors_naming("path"):
            train_size, train_labels = self._check_split("train")
            test_size, test_labels = self._check_split("t10k")
            images_path, labels_path = self.pair("t10k")
            if train_size != test_size:
                raise ValueError(
                    f"{images_path}: found images of {_format_size(test_size)};"
                    f" allowed: {_format_size(train_size)}, as in training"
                )
            unknown = sorted(test_labels - train_labels)
            if unknown:
                raise ValueError(
                    f"{labels_path}: found label {unknown[0]}; allowed: the labels of training"
                )

    def _check_split(self, split: Literal["train", "t10k"]) -> tuple[tuple[int, ...], set[int]]:
        """Return (height, width) of a split's images and the labels that occur in it."""
        images_path, labels_path = self.pair(split)
        (image_count, *size), _ = read_idx(images_path, 3)
        (label_count,), values = read_idx(labels_path, 1)
        if image_count != label_count:
            raise ValueError(
                f"{labels_path}: found {label_count} labels; allowed: {image_count}, one for each"
                f" image of {images_path}"
            )
        labels = set(values)
        if max(labels) >= self.classes:
            raise ValueError(
                f"{labels_path}: found label {max(labels)}; allowed: 0 to {self.classes - 1}, by"
                " classes"
            )
        return tuple(size), labels


@dataclass(frozen=True, kw_only=True)
class Csv(Source):
    """Labeled texts: a folder with train.csv and test.csv, or a single file.

    A single file may have a second one, `test`, to test on; otherwise 15% of each class is held
    out for testing.
    """

    source: Literal["csv"] = "csv"
    path: Path
    test: Path | None = None
    text: str = "text"  # the column with the text
    label: str = "label"  # the column with the label
    split_seed: Seed = 0  # of the draw that holds samples out

    @property
    def draw_seed(self) -> int:
        """Return the seed of the split."""
        return self.split_seed

    @property
    def has_test_set(self) -> bool:
        """Return whether there is a second file."""
        return len(self.files()) == 2

    def class_counts(self) -> Mapping[str, int]:
        """Return how many rows of each label are not in the test set."""
        train, test = self.rows()
        labels = [label for _, label in train]
        if test is not None:
            return Counter(labels)
        return _without_held_out(labels)

    def files(self) -> list[Path]:
        """Return the training file, and the test file if there is one."""
        if self.path.is_dir():
            return [self.path / "train.csv", self.path / "test.csv"]
        if self.test is None:
            return [self.path]
        return [self.path, self.test]

    def rows(self) -> tuple[list[Row], list[Row] | None]:
        """Return the rows to train on and those to test on, None if these are to be held out."""
        splits = [read_labeled(path, self.text, self.label) for path in self.files()]
        if len(splits) == 1:
            return splits[0], None
        return splits[0], splits[1]

    def check(self) -> None:
        """Raise ValueError unless the files are well-formed and their classes can be learned."""
        if self.test is not None and self.path.is_dir():
            raise ValueError(
                f"test: found {self.test} with the folder {self.path}; allowed: test with a file"
                " only"
            )
        key = "path" if self.test is None else "path and test"
        with errors_naming(key):
            train, test = self.rows()
            counts = Counter(label for _, label in train)
            if len(counts) < 2:
                only_label = next(iter(counts))
                raise ValueError(
                    f"{self.files()[0]}: found only the label {only_label!r}; allowed: 2 labels or"
                    " more"
                )
            if test is None:
                self._check_stratified_split(counts)
            else:
                self._check_test_labels(test, counts)

    def _check_stratified_split(self, counts: Counter[str]) -> None:
        """Raise ValueError if a class has too few rows to train on some and hold out others."""
        for label, count in counts.items():
            if count == 1:
                raise ValueError(
                    f"{self.path}: found one row labeled {label!r}; allowed: 2 or more, so that 15%"
                    " can be held out"
                )

    def _check_test_labels(self, test: list[Row], training_labels: Collection[str]) -> None:
        """Raise ValueError if a label of the test set does not occur in training."""
        for number, (_, label) in enumerate(test, start=1):
            if label not in training_labels:
                raise ValueError(
                    f"{self.files()[1]}: found label {label!r} in row {number}; allowed: the labels"
                    " of training"
                )


@dataclass(frozen=True, kw_only=True)
class Tickets(Source):
    """Generated support tickets about billing, technical trouble or an account.

    15% of each class is held out for testing.
    """

    source: Literal["tickets"] = "tickets"
    rows: Annotated[int, Between(60)] = 4000
    seed: Seed = 0

    @property
    def draw_seed(self) -> int:
        """Return the seed of the tickets."""
        return self.seed

    def class_counts(self) -> Mapping[str, int]:
        """Return how many tickets of each class are left; generating them takes a moment."""
        return _without_held_out(label for _, label in tickets(self.rows, self.seed))

    def conflict(self, axes: dict[str, Any]) -> str | None:
        """Return a conflict as for other sources; no ticket is generated for a usual batch."""
        if axes["batch_size"] <= self.rows // 2 * (1 - self.validation):
            return None
        return super().conflict(axes)


@dataclass(frozen=True, kw_only=True)
class Corpus(Settings):
    """Base of the settings of a running text: its beginning to train on, its end to test on."""

    sequence: Annotated[int, Between(1, 2**20)] = 128  # tokens of a sample
    validation: Fraction = 0.0  # of what is not for testing, its end; 0: no validation set

    def content(self) -> bytes:
        """Return the text."""
        raise NotImplementedError

    @cached_property  # cells of a sweep ask again and again
    def lengths(self) -> tuple[int, int, int]:
        """Return the bytes to train on, to validate with and to test on."""
        size = len(self.content())
        test = round(HELD_OUT * size)
        validation = round(self.validation * (size - test))
        return size - test - validation, validation, test

    def parts(self) -> tuple[bytes, bytes, bytes]:
        """Return the text to train on, to validate with and to test on, in its order."""
        train, validation, _ = self.lengths
        content = self.content()
        end = train + validation
        return content[:train], content[train:end], content[end:]

    @property
    def training_samples(self) -> int:
        """Return the number of sequences to train on."""
        return max(0, self.lengths[0] - 1) // self.sequence

    def check(self) -> None:
        """Raise ValueError unless each part has a sequence with a byte after it."""
        _, validation, test = self.lengths
        smallest = min([length for length in (validation, test) if length], default=0)
        if smallest <= self.sequence:
            raise ValueError(
                f"sequence: found {self.sequence}; allowed: less than the {smallest} bytes of the"
                " smallest part of the text"
            )

    def conflict(self, axes: dict[str, Any]) -> str | None:
        """Return a conflict if no batch of the size that the axes ask for can be filled."""
        return _unfilled_batch(axes["batch_size"], self.training_samples)


@dataclass(frozen=True, kw_only=True)
class PythonTopics(Corpus):
    """The reference of the language that comes with Python: half a megabyte of English.

    Another version of Python has another text, and so other cells.
    """

    source: Literal["python"] = "python"

    def content(self) -> bytes:
        """Return the topics of Python's `help`, in alphabetical order."""
        topics: dict[str, str] = importlib.import_module(PYTHON_TOPICS).topics
        return "\n\n".join(topics[name] for name in sorted(topics)).encode()

    def files(self) -> list[Path]:
        """Return the module that has the text."""
        spec = find_spec(PYTHON_TOPICS)
        return [Path(spec.origin)] if spec is not None and spec.origin else []


@dataclass(frozen=True, kw_only=True)
class TextFile(Corpus):
    """A file of text, of any encoding, gzipped or not."""

    source: Literal["file"] = "file"
    path: Path

    def content(self) -> bytes:
        """Return the content of the file."""
        return read_bytes(self.path)

    def check(self) -> None:
        """Raise ValueError unless the file can be read and is long enough."""
        with errors_naming("path"):
            if not self.path.is_file():
                raise ValueError(f"{self.path}: found no such file; allowed: a file of text")
        super().check()


ImageData = Digits | Idx
TextData = Csv | Tickets
CorpusData = PythonTopics | TextFile


def _format_size(size: tuple[int, ...]) -> str:
    """Return a size as people write it: `28 x 28`."""
    return " x ".join(map(str, size))
