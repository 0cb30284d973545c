"""Finds what Linux' control groups say of processes that were killed for want of memory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

GROUP_OF_THIS_PROCESS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


def oom_kills() -> int:
    """Return how many processes of this one's group the kernel has killed for memory.

    It is compared with an earlier count. Where control groups of version 2 can't be read, it stays 0.
    """
    with suppress(OSError, ValueError):
        group = GROUP_OF_THIS_PROCESS.read_text(encoding="utf-8").rpartition(":")[2].strip()
        events = MOUNT / group.lstrip("/") / "memory.events"
        if not events.exists():  # a container may be told the host's name of its own group
            events = MOUNT / "memory.events"
        for line in events.read_text(encoding="utf-8").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0
