"""Files that others read and write too: a full disk, locks, permissions and logs.

What a job is started from decides which code runs, and holds the values of variables that a profile
sets. A shared folder, on which a group may write, is the usual home of results. So permissions are
set whatever the umask. A log is read only if it is a regular file and no link: whoever may write into a
folder of results could put a link there that leads to a file of the reader's, and a report or MLflow
would publish it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from harness.core.errors import StorageError, one_line

# Errors of the disk, not of the program that writes to it.
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.EFBIG}
# With this code ends a rank that could not write its result (EX_IOERR in sysexits.h).
EXIT_CODE = 74
POLL = 0.1  # seconds between two attempts to lock
FOLDER_MODE = 0o700
FILE_MODE = 0o600
TAIL_BYTES = 2**16  # of a log's end that are read to show its last lines


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


def lock_file(file: IO[Any], timeout: float, *, is_shared: bool = False) -> bool:
    """Lock an open file for this process alone, or together with others that share it.

    Returns False if another process holds it for `timeout` seconds. Raises OSError where the file system
    has no locks.
    """
    operation = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(file, operation | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
        time.sleep(POLL)


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


def open_log(log: Path) -> BinaryIO:
    """Open a log for reading; raises OSError, also for a link and for what is no regular file."""
    is_special = log.exists() and not log.is_file()
    if log.is_symlink() or is_special:
        raise PermissionError(errno.EPERM, "is no regular file")
    return log.open("rb")


def read_tail(file: BinaryIO, limit: int = TAIL_BYTES) -> str:
    """Return the last `limit` bytes of a file, without reading what is before them.

    Bytes that are no UTF-8 are replaced: a process that dies may leave half a character.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - limit))
    return file.read(limit).decode("utf-8", errors="replace")


def last_log_line(log: Path) -> str:
    """Return the last line of a log that holds more than a rule of = or -, `none` if there is none.

    torchrun ends its report of a failure with such a rule. `none` also stands for a log that can't
    be read.
    """
    with suppress(OSError), open_log(log) as file:
        for line in reversed(read_tail(file).splitlines()):
            if line.strip(" =-"):
                return one_line(line)
    return "none"
