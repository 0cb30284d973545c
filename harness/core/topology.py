"""Reads from Linux which cores share a socket or a physical core."""

from __future__ import annotations

import re
from pathlib import Path

SYSTEM = Path("/sys")


def core_position(core: int, system: Path = SYSTEM) -> tuple[int, int]:
    """Return the socket and the physical core of a logical core, as the files below /sys have them.

    A physical core has the lowest number among its threads. Raises OSError where Linux does not say.
    """
    folder = system / f"devices/system/cpu/cpu{core}/topology"
    socket = int((folder / "physical_package_id").read_text(encoding="ascii"))
    threads = (folder / "thread_siblings_list").read_text(encoding="ascii")  # as in `0,4` or `0-1`
    return socket, int(re.split("[,-]", threads)[0])
