"""Compiles `faults.c` and talks to it through the control page, a file that all processes map.

`faults.c` says what it counts. The page says what to count, which call the fault strikes, and which
processes have been started.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("faults.c")
PATH_MAX = 4096  # of linux/limits.h
NAME_LENGTH = 16  # bytes of a role or a call, with the zero at its end
MAX_PROCESSES = 256

# What happens at a call, by the number that `faults.c` has for it.
KILL_BEFORE, KILL_AFTER, FAIL, FAIL_FROM_HERE = range(1, 5)


class _Process(ctypes.Structure):
    _fields_ = [("role", ctypes.c_char * NAME_LENGTH), ("pid", ctypes.c_int)]


class _Page(ctypes.Structure):
    """The struct `control` of `faults.c`."""

    _fields_ = [
        ("active", ctypes.c_int),
        ("recording", ctypes.c_int),
        ("root", ctypes.c_char * PATH_MAX),
        ("log", ctypes.c_char * PATH_MAX),
        ("role", ctypes.c_char * NAME_LENGTH),
        ("call", ctypes.c_char * NAME_LENGTH),
        ("pattern", ctypes.c_char * PATH_MAX),
        ("number", ctypes.c_int),
        ("action", ctypes.c_int),
        ("error", ctypes.c_int),
        ("matched", ctypes.c_int),
        ("fired", ctypes.c_int),
        ("process_count", ctypes.c_int),
        ("processes", _Process * MAX_PROCESSES),
    ]


class Call(NamedTuple):
    """A call that was recorded."""

    role: str  # of the process
    name: str  # as `faults.c` has it
    path: str  # below the root


class Control:
    """The control page as a campaign sees it."""

    def __init__(self, folder: Path) -> None:
        """Compile the shim into a folder, and write an empty page there."""
        library, path = folder / "faults.so", folder / "control"
        command = ["gcc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library)]
        subprocess.run([*command, str(SOURCE), "-ldl"], check=True)
        # With these, a process and all that it starts have the shim and its page.
        self.variables = {"LD_PRELOAD": str(library), "CAMPAIGN_CONTROL": str(path)}
        path.write_bytes(bytes(ctypes.sizeof(_Page)))
        with path.open("r+b") as file:
            self._page = _Page.from_buffer(mmap.mmap(file.fileno(), 0))

    def watch(self, root: Path, log: Path | None = None) -> None:
        """Begin to count calls below `root`, without a fault; record them if there is a `log`."""
        ctypes.memset(ctypes.byref(self._page), 0, ctypes.sizeof(_Page))
        self._page.root = os.fsencode(root)
        if log is not None:
            self._page.log = os.fsencode(log)
            self._page.recording = 1
        self._page.active = 1

    def arm(self, call: Call, number: int, action: str) -> None:
        """Let a fault strike the `number`-th call of this kind; after `watch`.

        An action is `kill-before`, `kill-after`, the name of an error, or `full-disk`: that stays so,
        and every later write below the root fails too.
        """
        self._page.role = call.role.encode()
        self._page.call = call.name.encode()
        self._page.pattern = os.fsencode(call.path)
        self._page.number = number
        codes = {"kill-before": KILL_BEFORE, "kill-after": KILL_AFTER, "full-disk": FAIL_FROM_HERE}
        error = "ENOSPC" if action in codes else action
        self._page.error = getattr(errno, error)
        self._page.action = codes.get(action, FAIL)

    def stop(self) -> None:
        """Stop counting."""
        self._page.active = 0

    @property
    def has_fired(self) -> bool:
        """Return whether the fault has struck."""
        return bool(self._page.fired)

    def roles(self) -> dict[int, str]:
        """Return the role of each process that was started since `watch`, in their order."""
        rows = self._page.processes[: min(self._page.process_count, MAX_PROCESSES)]
        return {row.pid: row.role.decode() for row in rows}


def read_calls(log: Path) -> list[Call]:
    """Return the calls that were recorded, in their order."""
    lines = log.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return [Call(*line.split("\t")) for line in lines]
