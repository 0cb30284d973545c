"""Tells a process that the kernel killed for want of memory from one that somebody else killed."""

from __future__ import annotations

from contextlib import suppress

from harness.core.control_groups import memory_files


def oom_kills() -> int:
    """Return how many processes of this one's control groups the kernel has killed for memory.

    It is compared with an earlier count. Where control groups can't be read, it stays 0.
    """
    total = 0
    for path in memory_files("memory.events", "memory.oom_control"):
        with suppress(OSError, ValueError):
            for line in path.read_text(encoding="utf-8").splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    total += int(count)
    return total
