"""Ends what ranks have started in sessions of their own, where their launcher was killed.

A launcher ends everything below it, except when it is killed itself, as it is with its command.
So all that it starts has a variable that names the command and the trial, and what is left is found
by that: when the trial ends, or by the next command that measures on this machine.

A process that a forked rank has forked without running another program can't be found: Linux shows
the variables that a program was started with.

Shared memory is also left behind: torch creates a block for each batch that a loader worker hands
over, and removes its name at once. A worker that is killed between the two calls leaves the name of a
block that nobody has written to.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

# Begins with an underscore: records list variables HARNESS_* without their values, and this one not
# at all.
VARIABLE = "_HARNESS_LAUNCHED_BY"
MARK = re.compile(r"(?P<command>(?P<namespace>\S+) (?P<pid>\d+) \d+) .*", re.ASCII | re.DOTALL)
NAMESPACE = Path("/proc/self/ns/pid")  # in another one, the same id is another process
SHARED_MEMORY = Path("/dev/shm")
BLOCK_NAMES = re.compile(r"torch_(\d+)_")  # torch's, with the id of the process that created it
# Seconds. Torch's two calls are microseconds apart, unless the process is stopped between them.
MIN_AGE = 1.0
CHUNK = 2**20  # bytes of a block that are read at once


def mark_variables(log: Path | str) -> dict[str, str]:
    """Return the variable for what this command starts for a trial, whose launcher writes to `log`."""
    return {VARIABLE: _mark(log)}


def kill_abandoned_of_trial(log: Path | str) -> None:
    """Kill what a trial of this command, whose launcher wrote to `log`, has left."""
    mark = _mark(log)
    _kill_marked(lambda other: other == mark)


def kill_abandoned() -> None:
    """Kill what this user's commands have left that have ended."""
    _kill_marked(_is_of_ended_command)


def _mark(log: Path | str) -> str:
    """Return the value of the variable."""
    return f"{_identity(os.getpid())} {log}"


def _identity(pid: int) -> str | None:
    """Return what tells a process from all others on this machine, None if it has ended.

    Its start is in clock ticks since boot, which no change of the clock changes.
    """
    if sys.platform != "linux":
        return f"{sys.platform} {pid} 0"
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # `PID (NAME) STATE …`, where the name may hold spaces and parentheses (man proc).
    fields = stat.rpartition(")")[2].split()
    state, start = fields[0], fields[19]
    return None if state == "Z" else f"{NAMESPACE.readlink()} {pid} {start}"


def _is_of_ended_command(mark: str) -> bool:
    """Return whether a mark is that of a command that has ended in this process's namespace."""
    match = MARK.fullmatch(mark)
    if match is None or match["namespace"] != str(NAMESPACE.readlink()):
        return False
    return _identity(int(match["pid"])) != match["command"]


def _kill_marked(is_abandoned: Callable[[str], bool]) -> None:
    """Kill this user's other processes with a mark that `is_abandoned` says so of."""
    if sys.platform != "linux":
        return
    for process in psutil.process_iter(["uids", "environ"]):
        mark = (process.info["environ"] or {}).get(VARIABLE)
        uids = process.info["uids"]
        if mark is None or uids.real != os.getuid() or process.pid == os.getpid():
            continue
        if is_abandoned(mark):
            with suppress(psutil.Error):  # it has just ended
                process.kill()


def remove_abandoned_blocks(folder: Path = SHARED_MEMORY) -> None:
    """Remove the blocks of this user's ended processes that have never been written to.

    What was written to may be in use: a block can outlive the process that made it.
    """
    if not folder.is_dir():  # macOS has none
        return
    for path in folder.glob("torch_*"):
        name = BLOCK_NAMES.match(path.name)
        if name is None or psutil.pid_exists(int(name[1])):
            continue
        with suppress(OSError):  # another command has removed it
            if _is_abandoned(path):
                path.unlink()


def _is_abandoned(path: Path) -> bool:
    """Return whether nobody will use a block whose creator has ended; raises OSError.

    Torch reserves a block's pages before it removes the name, so that only their zeros tell that
    nothing was written.
    """
    status = path.stat()
    if status.st_uid != os.getuid() or time.time() - status.st_mtime < MIN_AGE:
        return False
    with path.open("rb") as block:
        while chunk := block.read(CHUNK):
            if any(chunk):
                return False
    return True
