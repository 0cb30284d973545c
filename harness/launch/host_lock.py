"""Keeps two commands from measuring on one machine at a time: each would measure the other.

The lock is a file that all users share. It names its holder, and the kernel releases it however the
holder ends.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedRandom
from pathlib import Path

from harness.core.errors import HarnessError, one_line
from harness.core.locks import lock_file

LOCK_PATH = Path("/tmp/harness-host.lock")  # whatever TMPDIR says, which may differ among users
TIMEOUT = 24 * 3600.0  # seconds that another command is waited for
MAX_BYTES = 200  # of what the file says of its holder; any user may have written it
REMEDY = "`validity.contention: null` in the profile allows both side by side"


@contextmanager
def host_lock(activity: str, *, on_message: Callable[[str], None]) -> Iterator[None]:
    """Hold this machine for a measurement, as long as the block lasts.

    `activity` says what it is to whoever waits, as in `running trials of matrix`. While another
    process holds it, that one is waited for, and `on_message` gets a sentence that names it. Raises
    HarnessError after TIMEOUT.
    """
    try:
        file = _open()
    except OSError as error:
        on_message(
            f"{LOCK_PATH}: {error.strerror}, so another command may measure at the same time"
        )
        yield
        return
    with file:
        if not lock_file(file, 0):
            file.seek(0)
            said = one_line(file.read(MAX_BYTES).decode("utf-8", errors="replace"))
            holder = said or "another process"
            on_message(f"waiting for {holder}; {REMEDY}")
            if not lock_file(file, TIMEOUT):
                raise HarnessError(f"waited {TIMEOUT / 3600:g} h for {holder}; {REMEDY}")
        # Of the command only the name, as its arguments may have a password.
        command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:2]])
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        # On a full disk the lock holds all the same. Unbuffered: closing the file would write a buffer
        # that the disk refused again.
        with suppress(OSError):
            file.truncate(0)
            text = f"process {os.getpid()} (`{command}`), {activity} since {since}"
            os.pwrite(file.fileno(), text.encode(), 0)
        yield


def _open() -> BufferedRandom:
    """Open the lock file, and make it if there is none.

    Every user may lock it. Without O_CREAT where it exists: Linux refuses that for the file of
    another user in a folder like /tmp (`fs.protected_regular`). Nor may it be a link.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        handle = os.open(LOCK_PATH, flags)
    except FileNotFoundError:
        handle = os.open(LOCK_PATH, flags | os.O_CREAT, 0o666)
        os.fchmod(handle, 0o666)  # whatever the umask is
    return os.fdopen(handle, "r+b")
