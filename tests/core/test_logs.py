"""A log is read where it lies, only as far as needed, and through no link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.core.logs import last_log_line, open_log, read_tail

SECRET = "of the reader's own"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A trial's folder, beside a file that no log may show."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "rank0.log").write_text(SECRET, encoding="utf-8")
    trial = tmp_path / "trial"
    (trial / "logs").mkdir(parents=True)
    return trial


def linked_file(folder: Path) -> None:
    (folder / "logs" / "rank0.log").symlink_to(folder.parent / "private" / "rank0.log")


def named_pipe(folder: Path) -> None:
    os.mkfifo(folder / "logs" / "rank0.log")


def nested_folder(folder: Path) -> None:
    (folder / "logs" / "rank0.log").mkdir()


@pytest.mark.parametrize("place", [linked_file, named_pipe, nested_folder])
def test_what_is_no_file_of_the_trial_is_not_opened(folder: Path, place: object) -> None:
    assert callable(place)
    place(folder)
    log = folder / "logs" / "rank0.log"
    with pytest.raises(OSError, match="regular file"):
        open_log(log)
    assert last_log_line(log) == "none"


def test_only_the_end_of_a_huge_log_is_read(folder: Path) -> None:
    log = folder / "logs" / "rank0.log"
    with log.open("wb") as file:
        file.truncate(2**34)  # a hole of 16 GiB takes no room on the disk
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe \xff last line\n=====\n")
    assert last_log_line(log) == "the \N{REPLACEMENT CHARACTER} last line"
    with open_log(log) as opened:
        assert len(read_tail(opened, 100)) == 100
