"""Samples in mapped files and in shards: the same samples from any of them, in little memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from numpy.typing import NDArray

from harness.training.epoch import ShardWindows
from harness.training.loader import as_sequence
from harness.training.order import BatchOrder
from tests.support.images import idx
from workloads.base import Batch
from workloads.data import load_images
from workloads.mapped import MappedSamples, map_arrow, map_npy
from workloads.shards import ShardSamples
from workloads.sources import Idx, Mapped

Array = NDArray[Any]
COUNTS = {"train": 40, "test": 6}
SIDE = 3


def images_of(split: str) -> tuple[Array, Array]:
    """Return the images of a split, uint8 (samples, 3, 3), and their labels, int64 (samples,)."""
    rng = np.random.default_rng(len(split))
    count = COUNTS[split]
    return rng.integers(256, size=(count, SIDE, SIDE), dtype=np.uint8), np.arange(count) % 10


def write_npy(folder: Path, split: str) -> None:
    images, labels = images_of(split)
    np.save(folder / f"{split}-images.npy", images)
    np.save(folder / f"{split}-labels.npy", labels.astype(np.int16))


def write_idx(folder: Path, split: str) -> None:
    images, labels = images_of(split)
    name = "t10k" if split == "test" else split
    (folder / f"{name}-images-idx3-ubyte").write_bytes(idx(images.shape, images.tobytes()))
    content = labels.astype(np.uint8).tobytes()
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(labels.shape, content))


def write_arrow(folder: Path, split: str) -> None:
    """Write two record batches, so that rows lie in two pieces."""
    images, labels = images_of(split)
    flat = pyarrow.array(images.reshape(-1))
    table = pyarrow.table(
        {"image": pyarrow.FixedSizeListArray.from_arrays(flat, SIDE * SIDE), "label": labels}
    )
    path = str(folder / f"{split}.arrow")
    with pyarrow.OSFile(path, "wb") as file, pyarrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=len(labels) * 2 // 3)


def write_shards(folder: Path, split: str) -> None:
    """Write three shards of unequal sizes."""
    images, labels = images_of(split)
    cuts = (0, 2, len(labels) // 2, len(labels))
    for number in range(3):
        rows = slice(cuts[number], cuts[number + 1])
        np.savez(folder / f"{split}-{number:05d}.npz", images=images[rows], labels=labels[rows])


FORMATS = {"npy": write_npy, "idx": write_idx, "arrow": write_arrow, "shards": write_shards}


@pytest.fixture(params=list(FORMATS))
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Mapped:
    """Return the data set in one of the formats."""
    for split in COUNTS:
        FORMATS[request.param](tmp_path, split)
    return Mapped(path=tmp_path, window=1)


def test_every_format_has_the_same_samples(data: Mapped) -> None:
    data.check()
    assert data.training_samples == COUNTS["train"]
    assert data.conflict({"batch_size": 41}) == "batch_size 41 is more than the 40 training samples"
    images = load_images(data)
    assert (images.size, images.classes, images.splits.validation) == ((SIDE, SIDE), 10, None)
    indices = [39, 0, 26, 27, 1, 2, 19, 20, 20]
    for split, samples in (("train", images.splits.train), ("test", images.splits.test)):
        pixels, labels = images_of(split)
        assert len(samples) == COUNTS[split]
        rows = [index % COUNTS[split] for index in indices]
        batch, batch_labels = samples.batch(rows)
        assert (batch.shape, batch.dtype) == ((9, 1, SIDE, SIDE), torch.float32)
        assert batch_labels.tolist() == labels[rows].tolist()
        # Normalization is one line through all grey levels.
        slope, offset = np.polyfit(pixels[rows].ravel(), batch.numpy().ravel(), 1)
        np.testing.assert_allclose(batch[:, 0], pixels[rows] * slope + offset, atol=1e-5)


def test_mapped_images_are_those_in_memory(tmp_path: Path) -> None:
    for split in COUNTS:
        write_idx(tmp_path, split)
    mapped = load_images(Mapped(path=tmp_path)).splits
    in_memory = load_images(Idx(path=tmp_path)).splits
    for samples, others in ((mapped.train, in_memory.train), (mapped.test, in_memory.test)):
        rows = range(len(samples))
        for tensor, other in zip(samples.batch(rows), others.batch(rows), strict=True):
            assert torch.equal(tensor, other)


def test_a_validation_set_has_files_of_its_own(tmp_path: Path) -> None:
    for split in COUNTS:
        write_npy(tmp_path, split)
    np.save(tmp_path / "validation-images.npy", images_of("test")[0][:4])
    np.save(tmp_path / "validation-labels.npy", images_of("test")[1][:4])
    data = Mapped(path=tmp_path)
    data.check()
    validation = load_images(data).splits.validation
    assert validation is not None
    assert len(validation) == 4
    assert len(data.files()) == 6


def test_a_label_that_is_no_class_is_named_once_it_is_read(tmp_path: Path) -> None:
    for split in COUNTS:
        write_npy(tmp_path, split)
    samples = load_images(Mapped(path=tmp_path, classes=9)).splits.train
    with pytest.raises(ValueError, match=r"^classes: found label 9; allowed: 0 to 8, by classes$"):
        samples.batch([9])


# Shards


def shard_samples(sizes: Sequence[int], reads: Counter[str], window: int) -> ShardSamples:
    """Return samples that are their own numbers, and count which shard is read."""
    starts = np.concatenate([[0], np.cumsum(sizes)])

    def read(path: Path) -> Batch:
        reads[path.name] += 1
        number = int(path.name)
        return (torch.arange(starts[number], starts[number + 1]),)

    paths = [Path(str(number)) for number in range(len(sizes))]
    return ShardSamples(paths, sizes, read, window)


@pytest.mark.parametrize(("window", "workers"), [(1, 1), (2, 1), (2, 3), (3, 2)])
def test_a_reader_reads_each_shard_once_in_an_epoch(window: int, workers: int) -> None:
    """Also one of several loader workers, which has every n-th batch."""
    sizes = (40, 33, 41, 50, 36)
    epoch_order = ShardWindows(sizes, window)
    order = BatchOrder(
        samples=200, batch_size=8, seed=1, dp_rank=0, dp_size=1, epoch_order=epoch_order
    )
    for worker in range(workers):
        reads: Counter[str] = Counter()
        samples = shard_samples(sizes, reads, window)
        for indices in list(order)[worker::workers]:
            (batch,) = samples.batch(as_sequence(indices))
            assert batch.tolist() == indices.tolist()
        assert reads == dict.fromkeys("01234", 1)


def test_shards_that_are_not_of_their_sizes() -> None:
    with pytest.raises(ValueError, match=r"^shards: found 1 files and 2 sizes; allowed: one size"):
        ShardSamples([Path("a")], [1, 2], lambda _: ())
    with pytest.raises(ValueError, match=r"^window: found 0; allowed: 1 or more shards$"):
        ShardSamples([Path("a")], [1], lambda _: (), window=0)
    samples = ShardSamples([Path("a")], [3], lambda _: (torch.zeros(2),))
    with pytest.raises(ValueError, match=r"^a: found 2 samples; allowed: the 3 of its size$"):
        samples.batch([0])


# Wrong files


def test_missing_files_are_named_with_what_is_allowed(tmp_path: Path) -> None:
    write_npy(tmp_path, "train")
    with pytest.raises(ValueError, match=r"found no files of the split test; allowed: test-images"):
        Mapped(path=tmp_path).check()


def save(name: str, array: Array) -> Callable[[Path], None]:
    """Return what replaces a file by an array."""
    return lambda folder: np.save(folder / name, array)


def write(name: str, content: bytes) -> Callable[[Path], None]:
    """Return what replaces a file by bytes."""

    def replace_file(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return replace_file


def cut_off(folder: Path) -> None:
    """Cut off the last byte of the training images."""
    path = folder / "train-images.npy"
    path.write_bytes(path.read_bytes()[:-1])


IMAGES, LABELS = images_of("train")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut_off, "train-images.npy: found 487 bytes; allowed: the 488 of its header"),
        (write("train-images.npy", b""), "found an empty file at the start"),
        (write("train-images.npy", b"\x93NUMPY\x01\0\x03\0{a}"), "found a broken header"),
        (save("train-images.npy", np.asfortranarray(IMAGES)), "found an array in Fortran's order"),
        (save("train-images.npy", IMAGES > 9), "found images |b1 of shape (40, 3, 3)"),
        (save("train-images.npy", IMAGES.astype(np.float32)), "found images <f4"),
        (save("train-images.npy", IMAGES[:, :2]), "test-images.npy: found images of 3 x 3"),
        (save("train-images.npy", IMAGES[:0]), "found no samples"),
        (save("train-images.npy", np.array([{}])), "found values of type |O; allowed: numbers"),
        (save("train-labels.npy", LABELS[:9]), "train-labels.npy: found labels <i8 of shape (9,)"),
        (save("train-labels.npy", LABELS / 2), "found labels <f8"),
    ],
)
def test_a_broken_array_is_refused_before_anything_starts(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    for split in COUNTS:
        write_npy(tmp_path, split)
    spoil(tmp_path)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        Mapped(path=tmp_path).check()
    assert str(caught.value).startswith("path: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.arrow", b"nonsense", "allowed: an Arrow IPC file"),
        ("train-0.npz", b"nonsense", "allowed: an .npz file with the arrays images and labels"),
        ("train-images-idx3-ubyte", b"\x1f\x8bzip", "what is gzipped can't be mapped"),
        (
            "train-images-idx3-ubyte",
            b"\0\0\x08\x03\0",
            "found 5 bytes; allowed: a whole IDX header",
        ),
    ],
)
def test_a_broken_file_of_another_format(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    write_npy(tmp_path, "test")
    if name.startswith("train-images"):
        write_idx(tmp_path, "train")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        Mapped(path=tmp_path).check()


def test_columns_that_are_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    table = pyarrow.table({"text": ["a"], "number": pyarrow.array([None], pyarrow.int64())})
    with (
        pyarrow.OSFile(str(path), "wb") as file,
        pyarrow.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)
    with pytest.raises(ValueError, match="found no column 'label'; allowed: one of text, number"):
        map_arrow(path, "label")
    with pytest.raises(ValueError, match="found column 'text' of string with 0 missing values"):
        map_arrow(path, "text")
    with pytest.raises(ValueError, match="found column 'number' of int64 with 1 missing values"):
        map_arrow(path, "number")


def test_parts_of_samples_have_one_length(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 2)))
    np.save(tmp_path / "b.npy", np.zeros(4))
    arrays = [map_npy(tmp_path / name) for name in ("a.npy", "b.npy")]
    with pytest.raises(ValueError, match=r"b\.npy: found 4 rows; allowed: the 3 of .*a\.npy$"):
        MappedSamples(arrays)
