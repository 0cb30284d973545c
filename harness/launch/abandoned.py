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
from contextlib import suppress
from pathlib import Path

import psutil

# Begins with an underscore: records list variables HARNESS_* without their values, and this one not
# at all.
VARIABLE = "_HARNESS_LAUNCHED_BY"
MARK = re.compile(r"(?P<namespace>\S+) (?P<pid>\d+) (?P<start>\d+) .*", re.ASCII | re.DOTALL)
NAMESPACE = Path("/proc/self/ns/pid")  # in another one, the same id is another process
SHARED_MEMORY = Path("/dev/shm")
BLOCK_NAMES = re.compile(r"torch_(\d+)_")  # torch's, with the id of the process that created it
# Seconds. Torch's two calls are microseconds apart, unless the process is stopped between them.
MIN_AGE = 1.0


def mark_variables(log: Path | str) -> dict[str, str]:
    """Return the variable for what this command starts for a trial, whose launcher writes to `log`."""
    if sys.platform != "linux":
        return {}
    return {VARIABLE: f"{NAMESPACE.readlink()} {os.getpid()} {_start_of(os.getpid())} {log}"}


def kill_abandoned(log: Path | str | None = None) -> None:
    """Kill what this user's commands have left that have ended.

    With a launcher's `log`, kill what the trial of this command has left instead.
    """
    if sys.platform != "linux":
        return
    own_mark = "" if log is None else mark_variables(log)[VARIABLE]
    for process in psutil.process_iter(["uids", "environ"]):
        mark = (process.info["environ"] or {}).get(VARIABLE, "")
        is_mine = process.info["uids"].real == os.getuid() and process.pid != os.getpid()
        is_abandoned = mark == own_mark if own_mark else _is_of_ended_command(mark)
        if mark and is_mine and is_abandoned:
            with suppress(psutil.Error):  # it has just ended
                process.kill()


def _start_of(pid: int) -> str:
    """Return when a process started, in clock ticks since boot, empty if it has ended.

    It tells the process from others with its id, and no change of the clock changes it.
    """
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        # `PID (NAME) STATE …`, where the name may hold spaces and parentheses (man proc).
        fields = stat.rpartition(")")[2].split()
        if fields[0] != "Z":
            return fields[19]
    return ""


def _is_of_ended_command(mark: str) -> bool:
    """Return whether a mark is that of a command that has ended in this process's namespace."""
    match = MARK.fullmatch(mark)
    if match is None or match["namespace"] != str(NAMESPACE.readlink()):
        return False
    return _start_of(int(match["pid"])) != match["start"]


def remove_abandoned_blocks(folder: Path = SHARED_MEMORY) -> None:
    """Remove the blocks of this user's ended processes that have never been written to.

    What was written to may be in use: a block can outlive the process that made it. Torch reserves a
    block's pages before it removes the name, so that only their zeros tell.
    """
    for path in folder.glob("torch_*"):
        creator = BLOCK_NAMES.match(path.name)
        if creator is None or psutil.pid_exists(int(creator[1])):
            continue
        with suppress(OSError):  # another command has removed it, or it is somebody else's
            is_old = time.time() - path.stat().st_mtime >= MIN_AGE
            if is_old and not any(path.read_bytes()):
                path.unlink()
