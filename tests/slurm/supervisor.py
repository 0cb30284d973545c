"""Holds daemons, and everything they start: `python -m tests.slurm.supervisor FOLDER [PARENT]`.

Starts what FOLDER/NAME.start asks for, a JSON list of words, and keeps its process id in FOLDER/NAME.running while it
runs. When it is asked to end, or its parent, process PARENT, has ended, it kills all that has come from it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from harness.core.paths import write_atomically
from harness.core.processes import die_with_parent

PR_SET_CHILD_SUBREAPER = 36
POLL = 0.05  # seconds


def main() -> None:
    """Ends with exit code 0 once nothing is left."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    ctypes.CDLL(None).prctl(
        PR_SET_CHILD_SUBREAPER, 1
    )  # a step's processes leave slurmd, but not us
    folder, parent = Path(sys.argv[1]), [int(word) for word in sys.argv[2:]]
    if parent:
        die_with_parent(signal.SIGTERM)
        if os.getppid() not in parent:
            return  # it ended before the kernel was told
    held: dict[int, str] = {}
    write_atomically(folder / "supervisor.running", str(os.getpid()))
    try:
        while True:
            for asked in folder.glob("*.start"):
                command = json.loads(asked.read_text(encoding="utf-8"))
                asked.unlink()
                process = start(command, folder / f"{asked.stem}.log")
                held[process.pid] = asked.stem
                write_atomically(folder / f"{asked.stem}.running", str(process.pid))
            for pid in reap():
                if pid in held:
                    (folder / f"{held.pop(pid)}.running").unlink()
            time.sleep(POLL)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_all()
        for name in [*held.values(), "supervisor"]:
            (folder / f"{name}.running").unlink(missing_ok=True)


def start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """One daemon, that the kernel ends with this process."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def reap() -> list[int]:
    """The children that have ended since the last look, adopted ones too."""
    ended = []
    with suppress(ChildProcessError):  # there are none at all
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            ended.append(pid)
    return ended


def end_all() -> None:
    """Kill children, and theirs once they have come to us, until there are none."""
    while children := psutil.Process().children():
        for child in children:
            child.kill()
        os.waitpid(-1, 0)


if __name__ == "__main__":
    main()
