"""Files are written whole or not at all, and errors of the disk name them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from harness.cli import main as cli
from harness.core.errors import describe_disk_error
from harness.core.paths import remove_temporary_files, write_atomically
from tests.support.commands import harness


def full_disk(handle: int) -> None:
    """Stand in for os.fsync on a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_error_of_the_disk_names_the_file_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    write_atomically(path, "old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left on device") as raised:
        write_atomically(path, "new")
    assert raised.value.filename == str(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]
    assert path.read_text(encoding="utf-8") == "old"


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".record.json.ab_d3f9h").touch()
    (tmp_path / ".gitignore").touch()
    (tmp_path / "record.json").touch()
    remove_temporary_files(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".gitignore", "record.json"]


def test_a_full_disk_says_how_much_is_free(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "record.json"
    text = describe_disk_error(OSError(errno.EDQUOT, "Disk quota exceeded", str(path)))
    assert text.startswith(f"{path}: Disk quota exceeded (")
    assert text.endswith("GiB are free on the disk); mend that, then run the same command again")


def test_a_rename_that_fails_names_the_file_itself() -> None:
    error = OSError(errno.EIO, "Input/output error", "/r/.record.json.x", None, "/r/record.json")
    assert describe_disk_error(error).startswith("/r/record.json: Input/output error; ")


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_a_command_ends_with_one_line(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(**arguments: object) -> None:
        raise OSError(code, os.strerror(code), "results/runs/demo/sweep.json")

    monkeypatch.setattr(cli, "app", fail)
    result = harness("run", "quickstart")
    assert result.code == 1
    assert result.err.count("\n") == 1
    assert result.err.startswith("harness: results/runs/demo/sweep.json: ")


def test_any_other_error_of_the_system_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**arguments: object) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(OSError, match="Bad file descriptor"):
        harness("run", "quickstart")
