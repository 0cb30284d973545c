"""Folders and files that nobody but their owner may read or write.

What a job is started from decides which code runs, and holds the values of variables that a profile
sets. A shared folder, on which a group may write, is the usual home of results. So permissions are
set whatever the umask.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def make_private_folder(folder: Path) -> None:
    """Make a folder that only its owner may enter; one that exists gets the same permissions.

    Folders above it that are missing are made as the umask has it. Raises OSError if the folder
    can't be made private, as on file systems without permissions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(FOLDER_MODE)


@contextmanager
def private_umask() -> Iterator[int]:
    """Let nobody else read what the block writes; yields the umask that is restored after it."""
    previous = os.umask(0o777 & ~FOLDER_MODE)
    try:
        yield previous
    finally:
        os.umask(previous)


def user_name(number: int) -> str:
    """Return the name of a user, or its number where it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
