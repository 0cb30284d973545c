"""Keeps two commands from measuring on one machine at a time: each would measure the other.

The lock is a file that all users share. It names its holder, and the kernel releases it however the
holder ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path

from harness.core.errors import HarnessError, one_line
from harness.core.files import lock_file
from harness.core.progress import print_message
from harness.launch.abandoned import kill_abandoned, remove_abandoned_blocks
from harness.sweep.cluster import Profile

LOCK_PATH = Path("/tmp/harness-host.lock")  # whatever TMPDIR says, which may differ among users
TIMEOUT = 24 * 3600.0  # seconds that another command is waited for
MAX_BYTES = 200  # of what the file says of its holder; any user may have written it
REMEDY = "`validity.contention: null` in the profile allows both side by side"


@contextmanager
def hold_machine(
    profile: Profile, activity: str, on_message: Callable[[str], None] = print_message
) -> Iterator[None]:
    """Hold this machine for a measurement, unless the profile allows any contention.

    `activity` says what it is to whoever waits, as in `running trials of matrix`. While another
    process holds it, that one is waited for, and `on_message` gets a sentence that names it. Raises
    HarnessError after TIMEOUT.
    """
    kill_abandoned()
    try:
        with ExitStack() as stack:
            if profile.validity.contention is not None:
                try:
                    file = stack.enter_context(_open())
                except OSError as error:
                    problem = f"{LOCK_PATH}: {error.strerror}"
                    on_message(f"{problem}, so another command may measure at the same time")
                else:
                    _lock(file, activity, on_message)
            yield
    finally:
        # At the end: what the command before has left may be too new at first to be told from what is used.
        remove_abandoned_blocks()


def _lock(file: FileIO, activity: str, on_message: Callable[[str], None]) -> None:
    """Lock the file, and write into it what holds it."""
    if not lock_file(file, 0):
        holder = one_line(file.read(MAX_BYTES).decode("utf-8", errors="replace"))
        on_message(f"waiting for {holder}; {REMEDY}")
        if not lock_file(file, TIMEOUT):
            raise HarnessError(f"waited {TIMEOUT / 3600:g} h for {holder}; {REMEDY}")
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    with suppress(OSError):  # on a full disk the lock holds all the same
        file.truncate(0)
        text = f"process {os.getpid()}, {activity} since {since}"
        os.pwrite(file.fileno(), text.encode(), 0)


def _open() -> FileIO:
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
    return FileIO(handle, "r+")
