"""Temporary folders that do not stay behind, however the process ends that uses them.

A process that is killed can't tidy up. So each holds a lock on a file in its folder, which the
kernel releases, and whoever makes the next folder removes those whose lock is free.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from harness.core.errors import HarnessError
from harness.core.files import lock_file

PREFIX = "harness-"
LOCK_NAME = ".in-use"


class ScratchFolder:
    """A new temporary folder; as a context, it is removed in the end.

    What its process forks must close all files, or the folder counts as used as long as that runs.
    """

    def __init__(self, purpose: str, parent: Path | None = None) -> None:
        """Make the folder, named after its purpose, in `parent` or where TMPDIR says.

        Folders of this user there whose processes have ended are removed.
        """
        parent = parent or Path(tempfile.gettempdir())
        remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-", dir=parent))
        # Named only once it is locked: a lock that is free would have the folder removed.
        unnamed = self.path / f"{LOCK_NAME}.new"
        self._lock = unnamed.open("wb")
        lock_file(self._lock, 0)
        unnamed.rename(self.path / LOCK_NAME)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def keep(self) -> None:
        """Leave the folder for the user; a later `remove` does nothing."""
        (self.path / LOCK_NAME).unlink(missing_ok=True)
        self._lock.close()

    def remove(self) -> None:
        """Remove the folder and all that is in it, unless it is kept."""
        if not self._lock.closed:
            shutil.rmtree(self.path, ignore_errors=True)
            self._lock.close()


@contextmanager
def run_folder(purpose: str) -> Iterator[Path]:
    """Yield a temporary folder for the files of ranks; it stays if a HarnessError names a log in it."""
    with ScratchFolder(purpose) as scratch:
        try:
            yield scratch.path
        except HarnessError as error:
            if str(scratch.path) in str(error):
                scratch.keep()
            raise


def remove_abandoned(parent: Path | None = None) -> None:
    """Remove the scratch folders of this user that no process uses, in `parent` or where TMPDIR says."""
    parent = parent or Path(tempfile.gettempdir())
    for folder in parent.glob(f"{PREFIX}*"):
        # Another process may remove it at the same time; what can't be removed stays.
        with suppress(OSError):
            if folder.lstat().st_uid == os.getuid() and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def is_removed_scratch(folder: Path) -> bool:
    """Return whether a path is that of a scratch folder which does not exist any more."""
    return folder.name.startswith(PREFIX) and not folder.exists()


def _is_abandoned(folder: Path) -> bool:
    """Return whether a folder has a lock that nobody holds; raises OSError if it has none."""
    handle = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(handle, "r+b") as file:
        return lock_file(file, 0)
