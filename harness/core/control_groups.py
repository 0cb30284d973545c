"""Finds what Linux' control groups say of processes that were killed for want of memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS_OF_THIS_PROCESS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


def oom_kills() -> int:
    """Return how many processes of this one's groups the kernel has killed for memory.

    It is compared with an earlier count. Where control groups can't be read, it stays 0.
    """
    total = 0
    for path in _event_files():
        with suppress(OSError, ValueError):
            for line in path.read_text(encoding="utf-8").splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    total += int(count)
    return total


def _event_files() -> Iterator[Path]:
    """Yield the files that count the kills in this process's groups, in version 2 and in version 1.

    A container may see its own group as the root, and may be told the host's name of it.
    """
    with suppress(OSError):
        for line in GROUPS_OF_THIS_PROCESS.read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            folder, file = MOUNT, "memory.events"
            if controllers:
                folder, file = MOUNT / "memory", "memory.oom_control"
            if controllers and "memory" not in controllers.split(","):
                continue
            candidates = [folder / group.lstrip("/") / file, folder / file]
            yield from [path for path in candidates if path.is_file()][:1]
