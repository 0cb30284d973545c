"""Waits for commands of the harness, and sees what they leave running."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.core.processes import ending_descendants

GRACE = 5.0  # seconds that what a command started may take to end after it
POLL = 0.01  # seconds

Command = subprocess.Popen[bytes]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    exit_code: int | None  # negative for a signal; None if it hung and was ended
    output: str  # of both its streams
    left_behind: Mapping[int, str]  # processes that did not end with it -> their state

    @property
    def last_line(self) -> str:
        """Return the last line that it printed."""
        return self.output.rstrip().rpartition("\n")[2]


def wait(
    commands: Sequence[Command],
    *,
    outputs: Sequence[Path],
    deadline: float,
    server: Command | None = None,
) -> list[Ended]:
    """Wait until all commands have ended, for `deadline` seconds; then see what they left running.

    What takes longer is ended, and so is whatever was left. A `server` is one more command, which
    gets Ctrl-C once the others have ended.
    """
    until = time.monotonic() + deadline
    with ending_descendants():
        have_ended = _wait_for_end(commands, until)
        if server is not None and have_ended:
            server.send_signal(signal.SIGINT)
            have_ended = _wait_for_end([server], until)
        exit_codes = [command.poll() for command in commands]
        left_behind = _wait_for_orphans() if have_ended else {}
    all_ended = []
    for exit_code, path in zip(exit_codes, outputs, strict=True):
        output = path.read_text(encoding="utf-8", errors="replace")
        all_ended.append(Ended(exit_code=exit_code, output=output, left_behind=left_behind))
    return all_ended


def _wait_for_end(commands: Sequence[Command], until: float) -> bool:
    """Return whether all commands have ended by this time, on the monotonic clock."""
    while any(command.poll() is None for command in commands):
        if time.monotonic() > until:
            return False
        time.sleep(POLL)
    return True


def is_running(pid: int) -> bool:
    """Return whether a process runs, which one that has ended and was not waited for does not."""
    try:
        status: str = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return False
    return status != "zombie"


def _wait_for_orphans() -> dict[int, str]:
    """Give what a command started GRACE seconds to end; return what still runs then, and how."""
    deadline = time.monotonic() + GRACE
    while True:
        states = {}
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                states[process.pid] = process.status()
        states = {pid: state for pid, state in states.items() if state != psutil.STATUS_ZOMBIE}
        if not states or time.monotonic() > deadline:
            return states
        time.sleep(5 * POLL)
