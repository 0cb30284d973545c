"""Files are written whole or not at all, and errors of the disk name them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main as cli
from harness.cli.arguments import complete_recorded_sweeps
from harness.core.paths import Results, remove_temporary_files, results_folder
from tests.support.commands import harness


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".record.json.ab_d3f9h").touch()
    (tmp_path / ".gitignore").touch()
    (tmp_path / "record.json").touch()
    remove_temporary_files(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".gitignore", "record.json"]


FILES = (".sweep.json.x", None, "results/sweep.json")


@pytest.mark.parametrize(
    ("code", "files", "begins"),
    [
        (errno.EIO, FILES, "harness: results/sweep.json: "),
        (errno.EROFS, FILES, "harness: results/sweep.json: "),
        (errno.EAGAIN, (), "harness: limit of the system: Resource "),
        (errno.EBADF, (), None),
    ],
)
def test_an_error_of_disk_or_system_is_one_line_and_any_other_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, code: int, files: tuple[Any, ...], begins: str | None
) -> None:
    def fail(**arguments: object) -> None:
        raise OSError(code, os.strerror(code), *files)

    monkeypatch.setattr(cli, "command_tree", lambda: fail)
    if begins is None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            harness("run", "quickstart")
        return
    result = harness("run", "quickstart")
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert result.err.startswith(begins)


def test_an_empty_variable_names_no_results_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a CI file leaves it, and as the command line takes it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_RESULTS", "")
    assert results_folder(None) == Results(Path("results"))
    assert Results(Path("results")).command("ui") == "harness ui"
    Path("results/runs/nightly").mkdir(parents=True)
    Path("results/runs/nightly/sweep.json").touch()
    assert complete_recorded_sweeps() == ["nightly"]
