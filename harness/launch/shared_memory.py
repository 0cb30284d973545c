"""Removes shared memory that loader workers left because they were killed.

Torch creates a block for each batch that a worker hands over, and removes its name at once. A worker
that is killed between the two calls leaves a name for ever, of a block that nobody has written to.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")
BLOCK_NAMES = re.compile(r"torch_(\d+)_")  # torch's, with the id of the process that created it
# Seconds. Torch's two calls are microseconds apart, unless the process is stopped between them.
MIN_AGE = 1.0


def remove_abandoned_blocks(folder: Path = SHARED_MEMORY) -> None:
    """Remove the blocks of this user's ended processes that have never been written to.

    What was written to may be in use: a block can outlive the process that made it.
    """
    if not folder.is_dir():  # macOS has none
        return
    for path in folder.glob("torch_*"):
        name = BLOCK_NAMES.match(path.name)
        if name is not None and _is_abandoned(path, int(name[1])):
            path.unlink(missing_ok=True)


def _is_abandoned(path: Path, creator: int) -> bool:
    """Return whether nobody will use a block, which the process `creator` has made."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    is_written = status.st_blocks > 0
    is_new = time.time() - status.st_mtime < MIN_AGE
    if is_written or is_new or status.st_uid != os.getuid():
        return False
    return not psutil.pid_exists(creator)
