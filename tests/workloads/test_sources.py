"""Every way in which a data file can be wrong is one line that names the file, what was found and
what is allowed.
"""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import pytest

from tests.support.images import NAMES, idx
from workloads.distilbert_settings import CHECKPOINT, Csv, DistilBertOptions
from workloads.images import Idx
from workloads.settings import Settings

IMAGES, LABELS, TEST_IMAGES, TEST_LABELS = NAMES


def assert_refused(settings: Settings, file: Path, *parts: str) -> None:
    with pytest.raises(ValueError, match="allowed") as caught:
        settings.check()
    line = str(caught.value)
    assert "\n" not in line
    for part in (str(file), "found", "allowed", *parts):
        assert part in line


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """Six training and three test images of 4x3 pixels, the labels gzipped."""
    for split, labels in (("train", bytes([0, 1, 2, 2, 1, 0])), ("t10k", bytes([2, 1, 0]))):
        images, named = NAMES[:2] if split == "train" else NAMES[2:]
        (tmp_path / images).write_bytes(idx((len(labels), 4, 3), bytes(range(12)) * len(labels)))
        (tmp_path / f"{named}.gz").write_bytes(gzip.compress(idx((len(labels),), labels)))
    return tmp_path


def test_good_idx_files_pass(mnist: Path) -> None:
    data = Idx(path=mnist, classes=3)
    data.check()
    names = [path.name for path in data.files()]
    assert names == [IMAGES, f"{LABELS}.gz", TEST_IMAGES, f"{TEST_LABELS}.gz"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (IMAGES, b"\x00\x00\x0d\x03" + bytes(40), "found 00000d03"),
        (IMAGES, idx((0, 4, 3), b""), "found 0 values"),
        (TEST_LABELS, idx((3,), bytes([0, 1, 9])), "no sample to train on of ['9']; allowed"),
    ],
)
def test_broken_idx_files(mnist: Path, name: str, content: bytes, message: str) -> None:
    (mnist / name).write_bytes(content)
    assert_refused(Idx(path=mnist), mnist / name, message)


ROWS = "a,yes\nb,yes\nc,no\nd,no\n"


def test_good_csv_files_pass(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("\ufefftext,label\n" + ROWS, encoding="utf-8")
    (tmp_path / "test.csv").write_text('label,more,text\nno,,"two\nlines, é"\n', encoding="utf-8")
    data = Csv(path=tmp_path)
    data.check()
    Csv(path=tmp_path / "train.csv").check()
    _, test = data.samples()
    assert test == [("two\nlines, é", "no")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found no row; allowed: one or more below the header"),
        (b"text;label\na;b\n", "no column 'text'; allowed: text and label among text;label"),
        (b"text,label\n ,yes\n", "no text or label in line 2"),
        (b"text,label\na,yes,more\n", "more fields than the header, or no text or label in line 2"),
        (b"text,label\na,yes\n\xff,no\n", "byte 0xff in position 17: invalid start byte"),
        (b'text,label\n"a,yes\n', "unexpected end of data in line 1; allowed: CSV in UTF-8"),
        (b"text,label\na,yes\nb,yes\n", "no sample to train on of a second label"),
        (b"text,label\na,yes\nb,yes\nc,no\n", "no sample to train on of ['no']; allowed: "),
    ],
)
def test_broken_csv_files(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes(content)
    assert_refused(Csv(path=file), file, message)


def test_a_test_file_without_rows_is_not_replaced_by_training_rows(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\n" + ROWS)
    (tmp_path / "test.csv").write_text("text,label\n")
    assert_refused(Csv(path=tmp_path), tmp_path / "test.csv", "found no row")


def test_a_label_that_training_never_saw(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\n" + ROWS)
    (tmp_path / "test.csv").write_text("text,label\na,yes\nb,perhaps\n")
    assert_refused(
        Csv(path=tmp_path), tmp_path / "test.csv", "no sample to train on of ['perhaps']"
    )


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The files of a pretrained model, as far as planning looks at them."""
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    config = '{"model_type": "distilbert", "max_position_embeddings": 64}'
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    return tmp_path


@pytest.mark.parametrize("name", CHECKPOINT)
def test_an_incomplete_checkpoint(checkpoint: Path, name: str) -> None:
    options = DistilBertOptions(pretrained=checkpoint)
    options.check()
    (checkpoint / name).unlink()
    assert_refused(options, checkpoint, name, "No such file")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b'{"model_type": "bert"}', "model_type 'bert'; allowed: 'distilbert'"),
        ("tokenizer.json", b'{"version"', "found "),
        ("model.safetensors", b"", "header too small"),
        ("model.safetensors", bytes(100), "found "),
    ],
)
def test_broken_checkpoints(checkpoint: Path, name: str, content: bytes, message: str) -> None:
    (checkpoint / name).write_bytes(content)
    assert_refused(DistilBertOptions(pretrained=checkpoint), checkpoint, message)


def test_options_that_the_checkpoint_does_not_fit(checkpoint: Path) -> None:
    options = DistilBertOptions(pretrained=checkpoint, size="base")
    assert_refused(options, checkpoint / "config.json", "found n_layers None; allowed: 6")
    options = DistilBertOptions(pretrained=checkpoint, sequence=65)
    with pytest.raises(ValueError, match="sequence: found 65; allowed: at most 64"):
        options.check()
