"""Opens and reads logs, which programs of users write and which may be of any size.

A log is read only if it is a regular file and no link: whoever may write into a folder of results
could put a link there that leads to a file of the reader's, and a report or MLflow would publish it.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from harness.core.errors import one_line

TAIL_BYTES = 2**16  # of a log's end that are read to show its last lines


def open_log(log: Path) -> BinaryIO:
    """Open a log for reading; raises OSError, also for a link and for what is no regular file."""
    if log.is_symlink() or (log.exists() and not log.is_file()):
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
