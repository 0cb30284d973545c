"""Files that nobody but their owner may write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from harness.core.private import make_private_folder, private_umask


def test_folder_that_others_may_write_becomes_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    make_private_folder(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_umask_comes_back(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        with private_umask() as umask:
            (tmp_path / "file").touch()
        assert umask == os.umask(0o002) == 0o002
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    finally:
        os.umask(before)
