"""Says in one line that a disk is full, over its quota or failing: which file, and what is free."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.core.errors import StorageError

# Errors of the disk, not of the program that writes to it.
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.EFBIG}
# With this code ends a rank that could not write its result (EX_IOERR in sysexits.h).
EXIT_CODE = 74


def storage_error(error: BaseException, path: Path) -> StorageError | None:
    """Return what to say of an error that was raised when `path` was written.

    None if it is not the disk's.
    """
    for number in sorted(DISK_ERRORS):
        # Libraries that are not written in Python, such as safetensors, have it in their text only.
        is_named = not isinstance(error, OSError) and os.strerror(number) in str(error)
        if is_named or getattr(error, "errno", None) == number:
            return StorageError(f"{path}: {os.strerror(number)}; {free_space(path)}")
    return None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise StorageError in place of an error of the disk in the block, which writes `path`."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        failure = storage_error(error, path)
        if failure is None:
            raise
        raise failure from error


def free_space(path: Path) -> str:
    """Return what is free on the disk that a path is on, as in `free: 1.5 of 512.0 MiB`."""
    folder = path.absolute()
    while not folder.exists():
        folder = folder.parent
    disk = shutil.disk_usage(folder)
    return f"free: {disk.free / 2**20:.1f} of {disk.total / 2**20:.1f} MiB"
