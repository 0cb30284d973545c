"""The CPU cores that this process was given, whatever its libraries bind their threads to.

`os.sched_getaffinity(0)` is that of the calling thread. Once torch is imported with OMP_PROC_BIND
in the environment, it is one core, and a machine of 64 would be recorded as one of a single core.
"""

from __future__ import annotations

import harness


def usable_cores() -> list[int]:
    """Return the numbers of the cores that the process was started with, ascending.

    A job, a container or `taskset` may have given it some of the machine's only.
    """
    return list(harness.CORES_AT_START)
