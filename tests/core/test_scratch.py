"""Temporary folders go with their process, however it ends; those that somebody uses stay."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.core.errors import HarnessError
from harness.core.scratch import ScratchFolder, is_removed_scratch, run_folder

USE_ONE = """\
import sys
from pathlib import Path
from harness.core.scratch import ScratchFolder
scratch = ScratchFolder("test", Path(sys.argv[1]))
(scratch.path / "file").write_text("")
print(scratch.path, flush=True)
sys.stdin.read()
"""


def names(parent: Path) -> set[str]:
    return {path.name for path in parent.iterdir()}


def test_a_folder_goes_in_the_end_unless_it_is_kept(tmp_path: Path) -> None:
    with ScratchFolder("gone", tmp_path) as gone:
        (gone.path / "file").write_text("")
    with ScratchFolder("kept", tmp_path) as kept:
        kept.keep()
    ScratchFolder("next", tmp_path).remove()
    assert names(tmp_path) == {kept.path.name}
    assert is_removed_scratch(gone.path)
    assert not is_removed_scratch(kept.path)


@pytest.mark.parametrize("names_log", [True, False])
def test_the_files_of_ranks_stay_if_an_error_names_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, names_log: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(HarnessError), run_folder("test") as folder:
        raise HarnessError(f"rank 0 failed; log: {folder}/rank0.log" if names_log else "no rank")
    assert folder.exists() is names_log


def test_only_the_folder_of_a_process_that_was_killed_is_removed_by_the_next(
    tmp_path: Path,
) -> None:
    (tmp_path / "harness-not-ours").mkdir()
    user = subprocess.Popen(
        [sys.executable, "-c", USE_ONE, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert user.stdout is not None
    folder = Path(user.stdout.readline().strip())
    ScratchFolder("next", tmp_path).remove()
    assert (folder / "file").exists(), "it is in use"
    user.send_signal(signal.SIGKILL)
    user.communicate()
    ScratchFolder("next", tmp_path).remove()
    assert names(tmp_path) == {"harness-not-ours"}
