"""Finds what Linux' control groups say of this process's memory, and of processes killed for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS_OF_THIS_PROCESS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")
# Version 1 has no word for no limit, but a number near 2^63.
NO_LIMIT = 2**62


def memory_limit() -> int | None:
    """Return the bytes that the processes of this one's group may take, None without a limit.

    The page cache of what they read counts too, and is dropped where they need more. A group is
    bound by the limits of those around it.
    """
    limits = []
    for file in memory_files("memory.max", "memory.limit_in_bytes"):
        folder = file.parent
        while folder.is_relative_to(MOUNT):
            with suppress(OSError, ValueError):  # ValueError: "max", or a group without the file
                limits.append(int((folder / file.name).read_text(encoding="utf-8")))
            folder = folder.parent
    present = [limit for limit in limits if limit < NO_LIMIT]
    return min(present, default=None)


def oom_kills() -> int:
    """Return how many processes of this one's groups the kernel has killed for memory.

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


def memory_files(name: str, name_of_version_1: str) -> Iterator[Path]:
    """Yield the files of that name of this process's groups, in version 2 and in version 1.

    A container may see its own group as the root, and may be told the host's name of it.
    """
    with suppress(OSError):
        for line in GROUPS_OF_THIS_PROCESS.read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            folder, file = MOUNT, name
            if controllers:
                folder, file = MOUNT / "memory", name_of_version_1
            if controllers and "memory" not in controllers.split(","):
                continue
            candidates = [folder / group.lstrip("/") / file, folder / file]
            yield from [path for path in candidates if path.is_file()][:1]
