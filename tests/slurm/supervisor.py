"""Holds daemons and everything that they start: `python -m tests.slurm.supervisor FOLDER [PARENT]`.

It starts what a file FOLDER/NAME.start asks for, a JSON list of arguments, and keeps the process id
in FOLDER/NAME.running as long as the process runs. When it is asked to end, or its parent, process
PARENT, has ended, it kills every process that has come from it.
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

PR_SET_CHILD_SUBREAPER = 36  # man prctl
POLL_SECONDS = 0.05


def main() -> None:
    """Serve requests until SIGTERM; the exit code is 0 once no process is left."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    # The processes of a step leave slurmd; as the subreaper, this process adopts them.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    folder = Path(sys.argv[1])
    if len(sys.argv) > 2:
        die_with_parent(signal.SIGTERM)
        if os.getppid() != int(sys.argv[2]):
            return  # the parent ended before the kernel knew that this process is to end with it
    running: dict[int, str] = {}  # name of a daemon by process id
    write_atomically(folder / "supervisor.running", str(os.getpid()))
    try:
        while True:
            start_requested(folder, running)
            for pid in reap():
                if pid in running:
                    pid_file(folder, running.pop(pid)).unlink()
            time.sleep(POLL_SECONDS)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        kill_all()
        for name in [*running.values(), "supervisor"]:
            pid_file(folder, name).unlink(missing_ok=True)


def pid_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.running"


def start_requested(folder: Path, running: dict[int, str]) -> None:
    """Start the daemons that are asked for, and add them to `running`."""
    for request in folder.glob("*.start"):
        name = request.stem
        command = json.loads(request.read_text(encoding="utf-8"))
        request.unlink()
        process = start(command, folder / f"{name}.log")
        running[process.pid] = name
        write_atomically(pid_file(folder, name), str(process.pid))


def start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a daemon that the kernel ends with this process."""
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
    """Return the ids of the children, adopted ones too, that have ended since the last call."""
    ended = []
    with suppress(ChildProcessError):  # there is no child at all
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            ended.append(pid)
    return ended


def kill_all() -> None:
    """Kill the children, and theirs once they are adopted, until there are none."""
    while children := psutil.Process().children():
        for child in children:
            child.kill()
        os.waitpid(-1, 0)


if __name__ == "__main__":
    main()
