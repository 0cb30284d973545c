"""The CPU cores that this process was given, and which of them share a socket or a physical core.

`os.sched_getaffinity(0)` is that of the calling thread. Once torch is imported with OMP_PROC_BIND
in the environment, it is one core, and a machine of 64 would be recorded as one of a single core.
"""

from __future__ import annotations

import re
from pathlib import Path

import harness

SYSTEM = Path("/sys")


def usable_cores() -> list[int]:
    """Return the numbers of the cores that the process was started with, ascending.

    A job, a container or `taskset` may have given it some of the machine's only.
    """
    return list(harness.CORES_AT_START)


def core_position(core: int, system: Path = SYSTEM) -> tuple[int, int]:
    """Return the socket and the physical core of a logical core, as the files below /sys have them.

    A physical core has the lowest number among its threads. Raises OSError where Linux does not say.
    """
    folder = system / f"devices/system/cpu/cpu{core}/topology"
    socket = int((folder / "physical_package_id").read_text(encoding="ascii"))
    threads = (folder / "thread_siblings_list").read_text(encoding="ascii")  # as in `0,4` or `0-1`
    lowest = re.split("[,-]", threads)[0]
    return socket, int(lowest)
