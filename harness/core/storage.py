"""Says in one line that a disk is full, over its quota or failing: which file, and what is free."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.core.errors import StorageError

# Errors of the disk, not of the program that writes to it.
DISK_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EROFS,
    errno.ESTALE,
    errno.EFBIG,
}
# With this code ends a rank that could not write its result (EX_IOERR in sysexits.h).
EXIT_CODE = 74


def storage_error(error: BaseException, path: Path) -> StorageError | None:
    """Return what to say of an error that was raised when `path` was written.

    None if it is not the disk's.
    """
    if isinstance(error, OSError):
        number = error.errno
    else:
        # Libraries that are not written in Python, such as safetensors, have it in their text only.
        named = [number for number in sorted(DISK_ERRORS) if os.strerror(number) in str(error)]
        number = next(iter(named), None)
    if number is None or number not in DISK_ERRORS:
        return None
    return StorageError(f"{path}: {os.strerror(number)}; {free_space(path)}")


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
    try:
        disk = os.statvfs(folder)
    except OSError:
        return "free space unknown"
    if disk.f_files and not disk.f_favail:
        return f"free: 0 of {disk.f_files} files"
    mebibytes = disk.f_frsize / 2**20
    return f"free: {disk.f_bavail * mebibytes:.1f} of {disk.f_blocks * mebibytes:.1f} MiB"
