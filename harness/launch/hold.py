"""Keeps two commands from measuring on one machine at a time: each would measure the other.

The lock is a file that all users share. It names its holder, and the kernel releases it however the
holder ends. What the ranks of a command have started may outlive it where their launcher was killed
with it: all that launchers start has a variable that names the command and the trial, by which the next
command that measures here finds and ends it.

A process that a forked rank has forked without running another program can't be found: Linux shows
the variables that a program was started with.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

import psutil

from harness.core.errors import HarnessError, one_line
from harness.core.files import lock_file
from harness.core.progress import print_message
from harness.sweep.cluster import Profile

LOCK_PATH = Path("/tmp/harness-host.lock")  # whatever TMPDIR says, which may differ among users
TIMEOUT = 24 * 3600.0  # seconds that another command is waited for
REMEDY = "`validity.contention: null` in the profile allows both side by side"
# Begins with an underscore: records list variables HARNESS_* without their values, and this one not
# at all.
VARIABLE = "_HARNESS_LAUNCHED_BY"
NAMESPACE = Path("/proc/self/ns/pid")  # in another one, the same id is another process


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
    if profile.validity.contention is None:
        yield
        return
    with _open() as file:
        if not lock_file(file, 0):
            content = file.read(200)  # any user may have written it
            holder = one_line(content.decode("utf-8", errors="replace"))
            on_message(f"waiting for {holder}; {REMEDY}")
            if not lock_file(file, TIMEOUT):
                raise HarnessError(f"waited {TIMEOUT / 3600:g} h for {holder}; {REMEDY}")
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        with suppress(OSError):  # on a full disk the lock holds all the same
            file.truncate(0)
            text = f"process {os.getpid()}, {activity} since {since}"
            os.pwrite(file.fileno(), text.encode(), 0)
        yield


def _open() -> FileIO:
    """Open the lock file, and make it if there is none; raises HarnessError where that can't be done.

    Every user may lock it. Without O_CREAT where it exists: Linux refuses that for the file of
    another user in a folder like /tmp (`fs.protected_regular`). Nor may it be a link.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        if not LOCK_PATH.exists():
            flags |= os.O_CREAT
        handle = os.open(LOCK_PATH, flags, 0o666)
        with suppress(PermissionError):  # of another's file, which is so already
            os.fchmod(handle, 0o666)  # whatever the umask is
        return FileIO(handle, "r+")
    except OSError as error:
        raise HarnessError(f"{LOCK_PATH}: {error.strerror}; {REMEDY}") from None


def mark_variables(log: Path | str) -> dict[str, str]:
    """Return the variable for what this command starts for a trial, whose launcher writes to `log`."""
    if not NAMESPACE.exists():  # elsewhere than on Linux
        return {}
    return {VARIABLE: f"{NAMESPACE.readlink()} {os.getpid()} {log}"}


def kill_abandoned(log: Path | str | None = None) -> None:
    """Kill what commands have left that have ended.

    With a launcher's `log`, kill what the trial of this command has left instead.
    """
    own_mark = mark_variables(log or "").get(VARIABLE, "")
    for process in psutil.process_iter(["environ"]):
        mark = (process.info["environ"] or {}).get(VARIABLE, "")
        if not mark or process.pid == os.getpid():
            continue
        is_abandoned = mark == own_mark if log else _is_of_ended_command(mark)
        if is_abandoned:
            with suppress(psutil.Error):  # it has just ended, or is another user's
                process.kill()


def _is_of_ended_command(mark: str) -> bool:
    """Return whether a mark is that of a command that has ended in this process's namespace."""
    namespace, pid, _ = mark.split(" ", 2)
    if namespace != str(NAMESPACE.readlink()):
        return False
    with suppress(psutil.NoSuchProcess):
        command = psutil.Process(int(pid))
        return bool(command.status() == psutil.STATUS_ZOMBIE)
    return True
