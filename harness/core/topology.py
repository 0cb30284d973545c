"""Reads from Linux which cores share a socket or a physical core.

A core here is a logical one, as Linux numbers them; two of them may be threads of a physical core.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import BadInput


def parse_cores(text: str) -> set[int]:
    """Return the numbers in a list of ranges as Linux writes it, such as `0-2,4`."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cores.update(range(int(first), int(last or first) + 1))
    return cores


@dataclass(frozen=True)
class Topology:
    """The cores of a machine as the files below `root`, which is Linux's /sys, describe them."""

    root: Path = Path("/sys")

    def socket(self, core: int) -> int:
        """Return the number of the socket that a core is on."""
        return int(self._read(core, "topology/physical_package_id"))

    def physical_core(self, core: int) -> int:
        """Return the lowest number among the threads of a core's physical core."""
        return min(parse_cores(self._read(core, "topology/thread_siblings_list")))

    def _cpu(self, core: int) -> Path:
        """Return the folder of a core."""
        return self.root / f"devices/system/cpu/cpu{core}"

    def _read(self, core: int, name: str) -> str:
        """Return what a file of a core has."""
        return _read_text(self._cpu(core) / name)


def _read_text(path: Path) -> str:
    """Return what a file of /sys has; raises BadInput where it can't be read."""
    try:
        return path.read_text(encoding="ascii")
    except OSError as error:
        raise BadInput(
            f"{path}: can't be read: {error.strerror}; allowed: a file of Linux's"
        ) from None
