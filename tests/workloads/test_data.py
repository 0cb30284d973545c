from __future__ import annotations

import gzip
import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.images import idx
from tests.support.tree import TOP
from workloads.distilbert_settings import Csv, Tickets, read_rows
from workloads.gpt_settings import TextFile
from workloads.image_classifier import load_images
from workloads.images import Digits, Idx
from workloads.labeled import Labeled, stratified
from workloads.tickets import tickets


def test_every_class_is_held_out_in_proportion() -> None:
    choices = random.Random(0).choices(["a", "b", "c"], weights=[100, 20, 1], k=2000)
    labels = [*choices, "rare", "rare"]
    rows = list(enumerate(labels))
    training, held_out = stratified(rows, 0, 0.2)
    assert sorted(training + held_out) == rows
    assert (training, held_out) == (sorted(training), sorted(held_out))
    counts, tested = Counter(labels), Counter(label for _, label in held_out)
    assert tested == {label: max(1, round(0.2 * count)) for label, count in counts.items()}


def test_a_split_follows_its_seed_and_a_single_csv_file_is_split(tmp_path: Path) -> None:
    splits = [Digits(split_seed=seed).split() for seed in (1, 1, 2)]
    assert splits[0] == splits[1] != splits[2]
    rows = "".join(f"{label}{i}, {label} \n" for i in range(20) for label in "ab")
    (tmp_path / "all.csv").write_text("text,label\n" + rows)
    whole = Csv(path=tmp_path / "all.csv").split()
    assert Counter(label for _, label in whole["test"]) == {"a": 3, "b": 3}
    assert set(whole["train"]).isdisjoint(whole["test"])


def test_tickets_repeat_with_their_seed_and_their_classes_are_balanced() -> None:
    assert tickets(100, seed=3) == tickets(100, seed=3) != tickets(100, seed=4)
    counts = Counter(label for _, label in tickets(300, seed=0))
    assert counts == {"account": 100, "billing": 100, "technical": 100}


def test_digits() -> None:
    samples = load_images(Digits())
    pixels, labels = samples["train"].tensors
    assert pixels.shape[1:] == samples["test"].tensors[0].shape[1:] == (1, 28, 28)
    assert len(labels) + len(samples["test"]) == 1797
    assert (pixels.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert float(pixels.mean()) == pytest.approx(0, abs=1e-4)
    assert float(pixels.std()) == pytest.approx(1, abs=1e-4)
    assert torch.equal(pixels, load_images(Digits())["train"].tensors[0])
    assert not torch.equal(labels, load_images(Digits(split_seed=1))["train"].tensors[1])


def test_idx_files_are_read_and_normalised_by_the_training_set(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (20, 1, 5, 4), dtype=torch.uint8, generator=generator)
    for split, rows in (("train", slice(0, 16)), ("t10k", slice(16, 20))):
        part = pixels[rows].numpy().tobytes()
        count = len(part) // 20
        content = gzip.compress(idx((count, 5, 4), part))
        (tmp_path / f"{split}-images-idx3-ubyte.gz").write_bytes(content)
        labels = idx((count,), bytes(i % 2 for i in range(count)))
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(labels)
    samples = load_images(Idx(path=tmp_path, classes=2))
    grey = pixels.double()
    normal = ((grey - grey[:16].mean()) / grey[:16].std(correction=0)).float()
    torch.testing.assert_close(samples["train"].tensors[0], normal[:16])
    torch.testing.assert_close(samples["test"].tensors[0], normal[16:])
    assert samples["test"].tensors[1].tolist() == [0, 1, 0, 1]


@pytest.fixture
def real_data() -> Path:
    """The folder with real data that the project does not ship."""
    folder = Path(os.environ.get("HARNESS_DATA", TOP.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder} (HARNESS_DATA names another folder)")
    return folder


def test_real_images_and_texts(real_data: Path) -> None:
    images = Idx(path=real_data / "mnist10k")
    images.check()
    samples = load_images(images)
    assert (len(samples["train"]), len(samples["test"])) == (10000, 10000)
    data = Csv(path=real_data / "banking77", label="category")
    data.check()
    splits = data.split()
    assert (len(splits["train"]), len(splits["test"])) == (10003, 3080)
    assert len({label for _, label in splits["train"]}) == 77


@pytest.fixture(params=["digits", "idx", "csv", "csv with a test file", "tickets"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Labeled:
    """Data of each kind, with a third of each class to validate on."""
    rows = "".join(f"{label} {number},{label}\n" for label in "abc" for number in range(20))
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
    for split in ("train", "t10k"):
        pixels, labels = bytes(range(240)), bytes(number % 3 for number in range(60))
        (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(idx((60, 2, 2), pixels))
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(idx((60,), labels))
    sources: dict[str, Labeled] = {
        "digits": Digits(validation=1 / 3),
        "idx": Idx(path=tmp_path, validation=1 / 3),
        "csv": Csv(path=tmp_path / "train.csv", validation=1 / 3),
        "csv with a test file": Csv(path=tmp_path, validation=1 / 3),
        "tickets": Tickets(rows=180, validation=1 / 3),
    }
    return sources[request.param]


def test_a_validation_set_is_a_share_of_each_class_of_the_training_set(source: Labeled) -> None:
    splits = source.split()
    whole = replace(source, validation=0.0).split()
    assert splits["test"] == whole["test"]
    assert "validation" not in whole
    assert sorted(splits["train"] + splits["validation"]) == sorted(whole["train"])
    counts = Counter(label for _, label in whole["train"])
    drawn = Counter(label for _, label in splits["validation"])
    assert drawn == {label: round(count / 3) for label, count in counts.items()}
    assert source.training_samples == len(splits["train"])


def test_a_class_with_one_sample_is_trained_on(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text("text,label\na,x\nb,x\nc,y\n", encoding="utf-8")
    data = Csv(path=tmp_path, validation=0.5)
    splits = data.split()
    assert (len(splits["train"]), len(splits["validation"]), data.training_samples) == (2, 1, 2)
    assert {label for _, label in splits["train"]} == {"x", "y"}


def test_texts_may_be_compressed_and_long(tmp_path: Path) -> None:
    path = tmp_path / "book.txt.gz"
    path.write_bytes(gzip.compress(b"It was the best of times. " * 100))
    assert TextFile(path=path).content().startswith(b"It was the best")
    path = tmp_path / "texts.csv"
    path.write_text(f"text,label\n{'a' * 200_000},x\nb,y\n", encoding="utf-8")
    assert [len(text) for text, _ in read_rows(path, "text", "label")] == [200_000, 1]
