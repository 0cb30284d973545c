"""Every way in which a data file can be wrong is one line that names the file, what was found and
what is allowed.
"""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import pytest

from workloads.files import CHECKPOINT
from workloads.options import DistilBertOptions, Settings
from workloads.sources import Csv, Idx

IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"


def assert_refused(settings: Settings, file: Path, *parts: str) -> None:
    with pytest.raises(ValueError, match="allowed") as caught:
        settings.check()
    line = str(caught.value)
    assert "\n" not in line
    for part in (str(file), "found", "allowed", *parts):
        assert part in line


def idx(shape: tuple[int, ...], values: bytes) -> bytes:
    return struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape) + values


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """Six training and three test images of 4x3 pixels, one of the files gzipped."""
    for split, labels in (("train", bytes([0, 1, 2, 2, 1, 0])), ("t10k", bytes([2, 1, 0]))):
        pixels = bytes(range(12)) * len(labels)
        (tmp_path / f"{split}-{IMAGES}").write_bytes(idx((len(labels), 4, 3), pixels))
        (tmp_path / f"{split}-{LABELS}.gz").write_bytes(gzip.compress(idx((len(labels),), labels)))
    return tmp_path


def test_good_idx_files_pass(mnist: Path) -> None:
    data = Idx(path=mnist, classes=3)
    data.check()
    assert [path.name for path in data.files()] == [
        f"train-{IMAGES}",
        f"train-{LABELS}.gz",
        f"t10k-{IMAGES}",
        f"t10k-{LABELS}.gz",
    ]


def test_missing_idx_folder_and_file(mnist: Path) -> None:
    assert_refused(Idx(path=mnist / "no"), mnist / "no", "path", "found no such folder")
    (mnist / f"t10k-{IMAGES}").unlink()
    assert_refused(Idx(path=mnist), mnist / f"t10k-{IMAGES}", "found no such file", ".gz")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (f"train-{IMAGES}", b"", "an empty file"),
        (f"train-{IMAGES}", b"\x00\x00\x0d\x03" + bytes(40), "found 00000d03"),
        (f"train-{IMAGES}", b"\x00\x00\x08\x03" + bytes(5), "found 9 bytes"),
        (f"train-{IMAGES}", idx((6, 4, 3), bytes(71)), "found 71 values; allowed: the 6 x 4 x 3"),
        (f"train-{IMAGES}", idx((6, 4, 3), bytes(73)), "found 73 values"),
        (f"train-{IMAGES}", idx((0, 4, 3), b""), "found no samples"),
        (f"t10k-{IMAGES}", idx((3, 3, 3), bytes(27)), "found images of 3 x 3; allowed: 4 x 3"),
        (f"t10k-{LABELS}", idx((2,), bytes([0, 1])), "found 2 labels; allowed: 3"),
        (
            f"t10k-{LABELS}",
            idx((3,), bytes([0, 1, 9])),
            "found label 9; allowed: the labels of training",
        ),
        (
            f"train-{LABELS}",
            idx((6,), bytes([0, 1, 2, 2, 1, 10])),
            "found label 10; allowed: 0 to 9",
        ),
        (f"train-{LABELS}", idx((6, 1), bytes(6)), "found 00000802"),
        (f"train-{LABELS}", gzip.compress(bytes(100), mtime=0)[:-9], "found a corrupted gzip file"),
        (f"train-{LABELS}", b"\x1f\x8bnonsense", "found a corrupted gzip file"),
    ],
)
def test_broken_idx_files(mnist: Path, name: str, content: bytes, message: str) -> None:
    (mnist / name).write_bytes(content)
    assert_refused(Idx(path=mnist), mnist / name, "path: ", message)


ROWS = "a,yes\nb,yes\nc,no\nd,no\n"


def test_good_csv_files_pass(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("\ufefftext,label\n" + ROWS, encoding="utf-8")
    (tmp_path / "test.csv").write_text('label,more,text\nno,,"two\nlines, é"\n', encoding="utf-8")
    Csv(path=tmp_path).check()
    Csv(path=tmp_path / "train.csv").check()
    beside = Csv(path=tmp_path / "train.csv", test=tmp_path / "test.csv")
    beside.check()
    assert beside.rows()[1] == [("two\nlines, é", "no")]
    assert beside.files() == Csv(path=tmp_path).files()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found no header; allowed: a header and at least one row"),
        (b"text;label\na;b\n", "found the header 'text;label', a single column; allowed: columns"),
        (b"text,label\n", "found no rows"),
        (b"text,tag\na,b\n", "no single column 'label' (label); allowed: one of text, tag"),
        (b"text,label,label\na,b,c\n", "no single column 'label'"),
        (b"text,label\n ,yes\n", "found an empty 'text' in row 1"),
        (b"text,label\na,yes\nb, \n", "found an empty 'label' in row 2"),
        (b"text,label\na,yes,more\n", "found 3 fields in row 1; allowed: 2"),
        (b"text,label\na,yes\n\xff,no\n", "found byte 0xff in line 3; allowed: UTF-8"),
        (b'text,label\n"a,yes\n', "allowed: well-formed CSV"),
        (b"text,label\na,yes\nb,yes\n", "found only the label 'yes'"),
        (b"text,label\na,yes\nb,yes\nc,no\n", "found one row labeled 'no'; allowed: 2 or more"),
    ],
)
def test_broken_csv_files(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes(content)
    assert_refused(Csv(path=file), file, "path: ", message)


def test_missing_csv_files(tmp_path: Path) -> None:
    assert_refused(Csv(path=tmp_path / "no.csv"), tmp_path / "no.csv", "No such file")
    (tmp_path / "train.csv").write_text("text,label\n" + ROWS)
    assert_refused(Csv(path=tmp_path), tmp_path / "test.csv", "No such file")
    assert_refused(Csv(path=tmp_path / "train.csv", test=tmp_path), tmp_path, "Is a directory")


def test_a_test_file_beside_a_folder(tmp_path: Path) -> None:
    assert_refused(Csv(path=tmp_path, test=tmp_path / "test.csv"), tmp_path, "test: ")


def test_a_label_that_training_never_saw(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\n" + ROWS)
    (tmp_path / "test.csv").write_text("text,label\na,yes\nb,perhaps\n")
    assert_refused(Csv(path=tmp_path), tmp_path / "test.csv", "found label 'perhaps' in row 2")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The files of a pretrained model, as far as planning looks at them."""
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "config.json").write_text(
        '{"model_type": "distilbert", "max_position_embeddings": 64}'
    )
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    return tmp_path


def test_a_good_checkpoint_passes(checkpoint: Path) -> None:
    DistilBertOptions(pretrained=checkpoint).check()


@pytest.mark.parametrize("name", CHECKPOINT)
def test_an_incomplete_checkpoint(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()
    assert_refused(
        DistilBertOptions(pretrained=checkpoint),
        checkpoint / name,
        "pretrained: ",
        "found no such file",
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "config.json",
            b'{"model_type": "bert"}',
            "found model_type 'bert'; allowed: 'distilbert'",
        ),
        ("config.json", b'{"model_type": "distilbert"}', "found max_position_embeddings None"),
        ("config.json", b"[]", "found a list; allowed: an object"),
        ("tokenizer.json", b'{"version"', "found no JSON"),
        ("model.safetensors", b"", "found no safetensors header"),
        ("model.safetensors", bytes(100), "found no safetensors header"),
    ],
)
def test_broken_checkpoints(checkpoint: Path, name: str, content: bytes, message: str) -> None:
    (checkpoint / name).write_bytes(content)
    assert_refused(
        DistilBertOptions(pretrained=checkpoint), checkpoint / name, "pretrained: ", message
    )


def test_weights_cut_off(checkpoint: Path) -> None:
    weights = checkpoint / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    assert_refused(
        DistilBertOptions(pretrained=checkpoint),
        weights,
        f"found {len(whole) - 1} bytes; allowed: the {len(whole)}",
    )


def test_more_tokens_than_the_checkpoint_has_positions(checkpoint: Path) -> None:
    assert_refused(
        DistilBertOptions(pretrained=checkpoint, sequence=65),
        checkpoint,
        "sequence: found 65; allowed: at most the 64",
    )
