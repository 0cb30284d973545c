"""Data that is not there, or damaged."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.bad_input.refusals import check, refused
from tests.support.commands import harness
from tests.support.images import NAMES, idx, write_images

FILES = "name: demo\nworkloads:\n  mlp:\n    data: {source: idx, path: images}\n"
TEXTS = "name: demo\nworkloads:\n  distilbert:\n    data: {source: csv, path: texts.csv}\n"


def test_path_that_is_missing_from_the_file() -> None:
    Path("sweep.yaml").write_text(
        "name: demo\nworkloads:\n  mlp:\n    data: {source: idx}\n", encoding="utf-8"
    )
    line = refused("run", "sweep.yaml")
    wanted = "sweep.yaml:4: workloads.mlp.data.path: missing; it has no default; give it here or as --data mlp=PATH"
    assert line == wanted


@pytest.mark.parametrize(
    ("damage", "file", "problem"),
    [
        ({NAMES[0]: None}, NAMES[0], "found No such file or directory; allowed: a readable file"),
        ({NAMES[0]: b""}, NAMES[0], "found an empty file at the start; allowed: 00000803"),
        (
            {NAMES[0]: idx((10, 2, 2), bytes(39))},
            NAMES[0],
            "found 39 values; allowed: 10 x 2 x 2",
        ),
        (
            {NAMES[1]: idx((9,), bytes(range(9)))},
            NAMES[1],
            "found 9 labels; allowed: 10, as images",
        ),
        (
            {NAMES[1]: idx((10,), bytes(range(1, 11)))},
            NAMES[1],
            "found label 10; allowed: 0 to 9, by classes",
        ),
        (
            {NAMES[3]: gzip.compress(idx((2,), b"\0\1"))[:-4]},
            NAMES[3],
            "found Compressed file ended",
        ),
    ],
)
def test_images(here: Path, damage: dict[str, bytes | None], file: str, problem: str) -> None:
    folder = write_images(here / "images", labels=bytes(range(10)))
    for name, content in damage.items():
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)
    Path("sweep.yaml").write_text(FILES, encoding="utf-8")
    check(
        refused("run", "sweep.yaml"),
        f"sweep.yaml:4: workloads.mlp.data.path: {folder / file}: {problem}",
    )


def test_folder_of_images_that_is_missing(here: Path) -> None:
    Path("sweep.yaml").write_text(FILES, encoding="utf-8")
    problem = "found no such folder; to download MNIST: curl "
    begins = f"workloads.mlp.data.path: {here}"
    line = refused("run", "sweep.yaml")
    assert line.startswith(f"sweep.yaml:4: {begins}/images: {problem}")
    line = refused("run", "sweep.yaml", "--data", "other")
    assert line.startswith(f"--data other: {begins}/other: {problem}")


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (None, "found No such file or directory; allowed: a readable file"),
        (b"text,label\n", "found no row; allowed: one or more below the header"),
        (
            b"text,category\nhi,a\n",
            "found no column 'label'; allowed: text and label among text, category",
        ),
        (
            b"text,label\nhi,a\n,b\n",
            "found more fields than the header, or no text or label in line 3",
        ),
    ],
)
def test_texts(here: Path, texts: bytes | None, problem: str) -> None:
    if texts is not None:
        Path("texts.csv").write_bytes(texts)
    Path("sweep.yaml").write_text(TEXTS, encoding="utf-8")
    place = f"sweep.yaml:4: workloads.distilbert.data.path: {here / 'texts.csv'}: "
    check(refused("run", "sweep.yaml"), place + problem)


@pytest.mark.parametrize(
    ("workload", "samples"),
    [
        ("mlp: {data: {source: digits}}", 1528),
        ("distilbert: {data: {source: tickets, rows: 60}}", 51),
    ],
)
def test_batch_larger_than_the_data(workload: str, samples: int) -> None:
    Path("sweep.yaml").write_text(
        f"name: demo\nworkloads:\n  {workload}\nmatrix: {{batch_size: {samples + 1}}}\n",
        encoding="utf-8",
    )
    reason = f"batch_size {samples + 1} is more than the {samples} training samples"
    line = refused("plan", "sweep.yaml")
    assert line == (f"sweep.yaml: found no cell to run: 1 left out by conflict: {reason}")
    fitting = f"--set=batch_size={samples}"
    assert harness("plan", "sweep.yaml", fitting).code == 0
