from __future__ import annotations

import gzip
import os
import random
import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.images import idx
from tests.support.tree import TOP
from workloads.base import TensorSamples
from workloads.data import load_images, load_texts, stratified
from workloads.files import read_labeled
from workloads.sources import HELD_OUT, Csv, Digits, Idx, ImageData, TextData, TextFile, Tickets


def tensors(samples: object) -> tuple[torch.Tensor, ...]:
    assert isinstance(samples, TensorSamples)
    return samples.tensors


def test_every_class_is_held_out_in_proportion() -> None:
    labels = [
        *random.Random(0).choices(["a", "b", "c"], weights=[100, 20, 1], k=2000),
        "rare",
        "rare",
    ]
    training, held_out = stratified(labels, seed=0)
    assert sorted(training + held_out) == list(range(len(labels)))
    assert (training, held_out) == (sorted(training), sorted(held_out))
    counts, tested = Counter(labels), Counter(labels[row] for row in held_out)
    assert {label: tested[label] for label in counts} == {
        label: max(1, round(HELD_OUT * count)) for label, count in counts.items()
    }


def test_the_split_follows_its_seed() -> None:
    labels = ["a", "b"] * 50
    assert stratified(labels, seed=1) == stratified(labels, seed=1)
    assert stratified(labels, seed=1) != stratified(labels, seed=2)


def test_digits() -> None:
    images = load_images(Digits())
    (pixels, labels), (test_pixels, test_labels) = (
        tensors(images.splits.train),
        tensors(images.splits.test),
    )
    assert pixels.shape[1:] == test_pixels.shape[1:] == (1, 28, 28)
    assert (images.size, images.classes) == ((28, 28), 10)
    assert len(labels) + len(test_labels) == 1797
    assert (pixels.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert float(pixels.mean()) == pytest.approx(0, abs=1e-4)
    assert float(pixels.std()) == pytest.approx(1, abs=1e-4)
    again = tensors(load_images(Digits()).splits.train)
    assert torch.equal(pixels, again[0])
    other = tensors(load_images(Digits(split_seed=1)).splits.train)
    assert not torch.equal(labels, other[1])


def test_idx_files_are_read_and_normalised_by_the_training_set(tmp_path: Path) -> None:
    pixels = torch.randint(
        256, (20, 1, 5, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    for split, rows in (("train", slice(0, 16)), ("t10k", slice(16, 20))):
        part = pixels[rows]
        content = struct.pack(">4B3I", 0, 0, 8, 3, len(part), 5, 4) + part.numpy().tobytes()
        (tmp_path / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
        labels = bytes(i % 2 for i in range(len(part)))
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(
            struct.pack(">4BI", 0, 0, 8, 1, len(part)) + labels
        )
    images = load_images(Idx(path=tmp_path, classes=2))
    grey = pixels.double()
    mean, deviation = grey[:16].mean(), grey[:16].std(correction=0)
    assert (images.size, images.classes) == ((5, 4), 2)
    torch.testing.assert_close(
        tensors(images.splits.train)[0], ((grey[:16] - mean) / deviation).float()
    )
    torch.testing.assert_close(
        tensors(images.splits.test)[0], ((grey[16:] - mean) / deviation).float()
    )
    assert tensors(images.splits.test)[1].tolist() == [0, 1, 0, 1]


def test_csv_labels_are_numbered_in_alphabetical_order(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\none,b\ntwo,a\nthree, b \n")
    (tmp_path / "test.csv").write_text("text,label\nfour,a\n")
    texts = load_texts(Csv(path=tmp_path))
    assert texts.classes == ("a", "b")
    assert texts.train_labels.tolist() == [1, 0, 1]
    assert (texts.test, texts.test_labels.tolist()) == (["four"], [0])


def test_a_single_csv_file_is_split(tmp_path: Path) -> None:
    rows = "".join(f"{label}{i},{label}\n" for i in range(20) for label in "ab")
    (tmp_path / "all.csv").write_text("text,label\n" + rows)
    texts = load_texts(Csv(path=tmp_path / "all.csv"))
    assert texts.test_labels.bincount().tolist() == [3, 3]
    assert set(texts.train).isdisjoint(texts.test)


def test_tickets_are_split_by_class() -> None:
    texts = load_texts(Tickets(rows=300))
    assert texts.classes == ("account", "billing", "technical")
    assert texts.test_labels.bincount().tolist() == [15, 15, 15]


@pytest.fixture
def real_data() -> Path:
    """The folder with real data that the project does not ship."""
    folder = Path(os.environ.get("HARNESS_DATA", TOP.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder} (HARNESS_DATA names another folder)")
    return folder


def test_real_images(real_data: Path) -> None:
    data = Idx(path=real_data / "mnist10k")
    data.check()
    images = load_images(data)
    assert (len(images.splits.train), len(images.splits.test), images.size) == (
        10000,
        10000,
        (28, 28),
    )


def test_real_texts(real_data: Path) -> None:
    data = Csv(path=real_data / "banking77", label="category")
    data.check()
    texts = load_texts(data)
    assert (len(texts.train), len(texts.test), len(texts.classes)) == (10003, 3080, 77)


@pytest.mark.parametrize("split_seed", [0, 7])
def test_samples_to_train_on_are_known_without_loading_them(
    tmp_path: Path, split_seed: int
) -> None:
    rows = "".join(f"hi,{label}\n" for label in "a" * 17 + "b" * 3)
    (tmp_path / "texts.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
    digits = Digits(split_seed=split_seed)
    assert digits.training_samples == len(load_images(digits).splits.train)
    for texts in (Tickets(rows=77, seed=split_seed), Csv(path=tmp_path / "texts.csv")):
        assert texts.training_samples == len(load_texts(texts).train)


@pytest.fixture(params=["digits", "idx", "csv", "csv with a test file", "tickets"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> ImageData | TextData:
    """Data of each kind, with a third of each class to validate on."""
    rows = "".join(f"{label} {number},{label}\n" for label in "abc" for number in range(20))
    path = tmp_path / "texts.csv"
    path.write_text(f"text,label\n{rows}", encoding="utf-8")
    for split in ("train", "t10k"):
        images, labels = bytes(range(240)), bytes(number % 3 for number in range(60))
        (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(idx((60, 2, 2), images))
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(idx((60,), labels))
    sources: dict[str, ImageData | TextData] = {
        "digits": Digits(validation=1 / 3),
        "idx": Idx(path=tmp_path, validation=1 / 3),
        "csv": Csv(path=path, validation=1 / 3),
        "csv with a test file": Csv(path=path, test=path, validation=1 / 3),
        "tickets": Tickets(rows=180, validation=1 / 3),
    }
    return sources[request.param]


def samples_of(data: ImageData | TextData) -> tuple[list[str], list[str], list[str]]:
    """Return the training, test and validation samples with their labels, as texts."""
    if isinstance(data, (Csv, Tickets)):
        texts = load_texts(data)
        splits = (
            (texts.train, texts.train_labels),
            (texts.test, texts.test_labels),
            (texts.validation, texts.validation_labels),
        )
        train, test, validation = (
            [f"{text} {label}" for text, label in zip(inputs, labels.tolist(), strict=True)]
            for inputs, labels in splits
        )
        return train, test, validation
    images = load_images(data).splits
    train, test, validation = (
        [] if samples is None else [str(label) for label in tensors(samples)[1].tolist()]
        for samples in (images.train, images.test, images.validation)
    )
    return train, test, validation


def label_counts(samples: list[str]) -> dict[str, int]:
    """Return how many samples have which label, the last word of each."""
    return dict(sorted(Counter(sample.split()[-1] for sample in samples).items()))


def test_a_validation_set_is_a_share_of_each_class_of_the_training_set(
    source: Digits | Idx | TextData,
) -> None:
    train, test, validation = samples_of(source)
    whole, whole_test, none = samples_of(replace(source, validation=0.0))
    assert none == []
    assert test == whole_test
    assert sorted(train + validation) == sorted(whole)
    of_training = label_counts(whole)
    shares = {label: round(count / 3) for label, count in of_training.items()}
    assert label_counts(validation) == shares
    assert source.training_samples == len(train)


def test_the_draw_of_a_validation_set_follows_from_the_seed() -> None:
    texts = Tickets(rows=180, validation=0.2)
    assert samples_of(texts) == samples_of(texts)
    digits = [load_images(Digits(validation=0.2, split_seed=seed)).splits for seed in (0, 0, 1)]
    first, again, other = (tensors(splits.validation)[0] for splits in digits if splits.validation)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_class_with_one_sample_is_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text("text,label\na,x\nb,x\nc,y\n", encoding="utf-8")
    data = Csv(path=path, test=path, validation=0.5)
    texts = load_texts(data)
    assert (len(texts.train), len(texts.validation), data.training_samples) == (2, 1, 2)
    assert set(texts.train_labels.tolist()) == {0, 1}


def test_a_compressed_text_is_trained_as_text(tmp_path: Path) -> None:
    path = tmp_path / "book.txt.gz"
    path.write_bytes(gzip.compress(b"It was the best of times. " * 100))
    assert TextFile(path=path).content().startswith(b"It was the best")


@pytest.mark.parametrize(("content", "kind"), [(b"PK\x03\x04rest", "zip"), (b"BZh9rest", "bzip2")])
def test_other_archives_are_refused(tmp_path: Path, content: bytes, kind: str) -> None:
    path = tmp_path / "book"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"book: found a {kind} archive; allowed: its content"):
        TextFile(path=path).check()


def test_texts_may_be_long(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text(f"text,label\n{'a' * 200_000},x\nb,y\n", encoding="utf-8")
    assert [len(text) for text, _ in read_labeled(path, "text", "label")] == [200_000, 1]
