"""Files that nobody but their owner may have written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from harness.core import private
from harness.core.errors import BadInput
from harness.core.private import make_private_folder, private_umask, refuse_foreign


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o702])
def test_folder_that_others_may_write_is_refused_until_it_is_private(
    tmp_path: Path, mode: int
) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(BadInput, match=f"found mode {mode:04o}, so that others may write it"):
        refuse_foreign(tmp_path)
    make_private_folder(tmp_path)
    refuse_foreign(tmp_path)


def test_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch(mode=0o600)
    monkeypatch.setattr(private, "ROOT", -1)
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    with pytest.raises(BadInput, match=f"{file}: found owner "):
        refuse_foreign(file)


def test_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(BadInput, match="found a link"):
        refuse_foreign(tmp_path / "link")


def test_umask_comes_back(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        with private_umask() as umask:
            (tmp_path / "file").touch()
        assert umask == os.umask(0o002) == 0o002
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    finally:
        os.umask(before)
