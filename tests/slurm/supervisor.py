"""Holds daemons and everything that they start, for as long as its standard input is open.

`python -m tests.slurm.supervisor` reads lines of JSON, each with the path of a log and the words of a command.
It answers each with the process id of the daemon that it has started.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from harness.core.processes import die_with_parent, ending_descendants


def main() -> None:
    """Serve requests until there are no more, and then kill every process that has come from this one."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing that has ended stays as a zombie
    # The processes of a step leave slurmd; this process adopts them.
    with ending_descendants():
        for line in sys.stdin:
            log, *command = json.loads(line)
            print(start(command, Path(log)), flush=True)


def start(command: list[str], log: Path) -> int:
    """Start a daemon and return its process id."""
    with log.open("ab") as output:
        daemon = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=become_daemon,
        )
    return daemon.pid


def become_daemon() -> None:
    """Have the kernel end the daemon with this process, and tell it of its own children."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_parent()


if __name__ == "__main__":
    main()
