"""Becomes another program, which the kernel ends when the process ends that has started this one.

`python -P -m harness.launch.bound COMMAND ARGUMENT…`

For programs that don't call `die_with_parent` themselves, such as a container's. Linux keeps the
request across `execve`, unless that runs a set-user-ID program.
"""

from __future__ import annotations

import os
import sys

from harness.core.processes import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])
