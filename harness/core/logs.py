"""Opens and reads logs, which programs of users write and which may be of any size.

A log is read only if it is a regular file and no link: whoever may write into a folder of results
could put a link there that leads to a file of the reader's, and a report or MLflow would publish it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from harness.core.errors import one_line

TAIL_BYTES = 2**16  # of a log's end that are read to show its last lines
# Without NONBLOCK, opening a named pipe that nobody writes to would wait for ever.
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_log(log: Path) -> BinaryIO:
    """Open a log for reading; raises OSError, also for a link and for what is no regular file."""
    descriptor = os.open(log, READ_FLAGS)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "is no regular file")
    return os.fdopen(descriptor, "rb")


def read_tail(file: BinaryIO, limit: int = TAIL_BYTES) -> str:
    """Return the last `limit` bytes of a file, without reading what is before them.

    Bytes that are no UTF-8 are replaced: a process that dies may leave half a character.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - limit))
    return file.read(limit).decode("utf-8", errors="replace")


def log_tail(log: Path) -> str:
    """Return the end of a log, empty for one that can't be read."""
    try:
        with open_log(log) as file:
            return read_tail(file)
    except OSError:
        return ""


def last_log_line(log: Path) -> str:
    """Return the last line of a log that holds more than a rule of = or -, `none` if there is none.

    torchrun ends its report of a failure with such a rule. `none` also stands for a log that can't
    be read.
    """
    for line in reversed(log_tail(log).splitlines()):
        if line.strip(" =-"):
            return one_line(line)
    return "none"
