"""Which runs in a shared store are a results folder's own: not those of a folder that was copied."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.tracking.tracker import origin_id


def id_of(folder: Path) -> str:
    """Return the id of a results folder, as a delivery finds it."""
    path = folder / "mlflow.db.lock"
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT), "r+", encoding="utf-8") as file:
        return origin_id(file, path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "results"
    path.mkdir()
    return path


def test_a_copy_gets_an_id_of_its_own_and_the_original_keeps_its(folder: Path) -> None:
    first = id_of(folder)
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    second = id_of(copy)
    assert second != first
    assert (id_of(folder), id_of(copy)) == (first, second)
    folder.rename(folder.with_name("moved"))
    shutil.copytree(copy, folder)
    assert id_of(folder.with_name("moved")) == first, "whatever is where it was"
    assert id_of(folder) not in (first, second)


def move_by_copying(folder: Path, target: Path) -> None:
    """Move a folder as `mv` does between file systems."""
    shutil.copytree(folder, target)
    shutil.rmtree(folder)


@pytest.mark.parametrize("move", [Path.rename, move_by_copying])
def test_a_folder_that_is_moved_keeps_its_id(
    move: Callable[[Path, Path], None], folder: Path
) -> None:
    first = id_of(folder)
    target = folder.with_name("moved")
    move(folder, target)
    assert id_of(target) == first
    move_by_copying(target, folder.with_name("backup"))
    move_by_copying(folder.with_name("backup"), target)
    assert id_of(target) == first, "it was restored from a backup"


def test_another_host_knows_a_shared_folder_and_takes_its_own_for_a_copy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = id_of(folder)
    shutil.copytree(folder, folder.with_name("copy"))
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert id_of(folder) == first
    shutil.rmtree(folder)
    assert id_of(folder.with_name("copy")) != first


@pytest.mark.parametrize("content", ["{", "", "{}", "x" * 10_000])
def test_a_damaged_file_is_replaced(content: str, folder: Path) -> None:
    path = folder / "mlflow.db.lock"
    path.write_text(content, encoding="utf-8")
    assert id_of(folder) == id_of(folder)


def test_a_file_that_says_the_id_alone_is_completed(folder: Path) -> None:
    path = folder / "mlflow.db.lock"
    path.write_text("0123456789abcdef0123456789abcdef", encoding="utf-8")
    assert id_of(folder) == "0123456789abcdef0123456789abcdef"
    shutil.copytree(folder, folder.with_name("copy"))
    assert id_of(folder.with_name("copy")) != id_of(folder)
