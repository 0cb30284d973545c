"""Becomes another program, which the kernel ends when the process ends that has started this one.

`python -P -m harness.launch.bound CORES COMMAND ARGUMENT…`

For programs that don't call `die_with_parent` themselves, such as a container's. Linux keeps the
request across `execve`, unless that runs a set-user-ID program. CORES are the CPU cores that it may
use, as a list in JSON; an empty one leaves them as they are.
"""

from __future__ import annotations

import json
import os
import sys

from harness.core.processes import die_with_parent


def main() -> None:
    """Run the command in this process's place."""
    die_with_parent()
    cores, *command = sys.argv[1:]
    if json.loads(cores):
        os.sched_setaffinity(0, json.loads(cores))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
