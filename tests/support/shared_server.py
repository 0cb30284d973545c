"""An MLflow server that all processes of a run of the tests share: each takes 10 s of CPU time.

Run as a program, `python -m tests.support.shared_server FOLDER PID`, the module is the server.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from pathlib import Path

import psutil

from harness.core.paths import Results, write_atomically
from harness.core.ports import LOOPBACK, listen
from harness.tracking import Tracker, ui
from tests.support.running import wait_until
from tests.support.tree import TOP

POLL = 0.5  # seconds between two looks at whether the run has ended

_started: list[subprocess.Popen[bytes]] = []  # Python warns of one that runs and is forgotten


def address(folder: Path, owner: int) -> str:
    """Return the address of the server in a folder; whoever asks first starts it.

    It ends with the process `owner`, or when `end` is called.
    """
    folder.mkdir(exist_ok=True)
    address_path = folder / "address"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not address_path.exists():
            start(folder, owner)
        wait_until(address_path.exists)
    return address_path.read_text(encoding="utf-8")


def start(folder: Path, owner: int) -> None:
    """Start the server.

    This process has loaded MLflow, or will for its tests, so that it prepares the database.
    """
    results = results_in(folder)
    results.path.mkdir(exist_ok=True)
    Tracker(results).prepare()
    command = [sys.executable, "-m", "tests.support.shared_server", str(folder), str(owner)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=TOP,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # it outlives the process that has started it
        )
    _started.append(process)


def results_in(folder: Path) -> Results:
    """Return the results that the server in a folder shows."""
    return Results(folder / "results")


def end(folder: Path) -> list[psutil.Process]:
    """Have the server in a folder end, if there is one; return its process, which is about to go."""
    pid_path = folder / "pid"
    if not pid_path.exists():
        return []
    (folder / "address").unlink()
    try:
        return [psutil.Process(int(pid_path.read_text(encoding="ascii")))]
    except psutil.NoSuchProcess:
        return []


def main() -> None:
    """Serve until the address is removed, or until the process that owns the server has ended."""
    folder, owner = Path(sys.argv[1]), int(sys.argv[2])
    with listen(LOOPBACK, 0) as listening:
        port = listening.getsockname()[1]
    with ui.server(Tracker(results_in(folder)), port=port) as base:
        write_atomically(folder / "pid", str(psutil.Process().pid))
        write_atomically(folder / "address", base)
        while (folder / "address").exists() and psutil.pid_exists(owner):
            time.sleep(POLL)


if __name__ == "__main__":
    main()
