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
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path

import msgspec

from harness.core.errors import HarnessError, one_line
from harness.core.locks import lock_file

LOCK_PATH = Path("/tmp/harness-host.lock")  # whatever TMPDIR says, which may differ among users
TIMEOUT = 24 * 3600.0  # seconds that another command is waited for
MAX_BYTES = 4096  # of what the file says of its holder; any user may have written it
REMEDY = "`validity.contention: null` in the profile allows both side by side"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """What the file says of the process that holds it."""

    pid: int
    command: str
    activity: str  # what it does, as in `running trials of matrix`
    since: float  # seconds since the epoch


@contextmanager
def host_lock(
    activity: str,
    *,
    on_message: Callable[[str], None],
    should_wait: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
    """Hold this machine for a measurement, as long as the block lasts.

    `activity` says what it is to whoever waits, as in `running trials of matrix`. While another
    process holds it, that one is waited for, and `on_message` gets a sentence that
    names it. The block begins without the lock once `should_wait` says no. Raises HarnessError after TIMEOUT.
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
        is_held = lock_file(file, 0)
        if not is_held:
            holder = _describe_holder(file)
            on_message(f"waiting, because {holder}; {REMEDY}")
            is_held = lock_file(file, TIMEOUT, should_wait)
            if not is_held and should_wait():
                raise HarnessError(f"waited {TIMEOUT / 3600:g} h; {holder}; {REMEDY}")
        if is_held:
            _write_holder(file, activity)
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


def _write_holder(file: BufferedRandom, activity: str) -> None:
    """Write into the file that this process holds it, and for what."""
    # Of the command only the name, as its arguments may have a password.
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:2]])
    this = Holder(pid=os.getpid(), command=command, activity=activity, since=time.time())
    # On a full disk the lock holds all the same. Unbuffered: closing the file would write a buffer
    # that the disk refused again.
    with suppress(OSError):
        file.truncate(0)
        os.pwrite(file.fileno(), msgspec.json.encode(this), 0)


def _describe_holder(file: BufferedRandom) -> str:
    """Return a clause about the process that the file names."""
    file.seek(0)
    try:
        holder = msgspec.json.decode(file.read(MAX_BYTES), type=Holder)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.since))
    except (msgspec.MsgspecError, ValueError, OverflowError, OSError):
        return f"another process has been measuring on this machine ({LOCK_PATH})"
    return one_line(
        f"process {holder.pid} (`{holder.command}`) has been {holder.activity}"
        f" on this machine since {since}"
    )
