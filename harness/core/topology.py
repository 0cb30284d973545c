"""Reads from Linux which cores share a NUMA node, a socket, a physical core or a cache.

A core here is a logical one, as Linux numbers them; two of them may be threads of a physical core.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import BadInput
from harness.core.text import ranges

NODE_PAGES = re.compile(r" N(?P<node>\d+)=(?P<pages>\d+)")
PAGE_SIZE = re.compile(r" kernelpagesize_kB=(\d+)")


def parse_cores(text: str) -> set[int]:
    """Return the numbers in a list of ranges as Linux writes it, such as `0-2,4`."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cores.update(range(int(first), int(last or first) + 1))
    return cores


def format_cores(cores: Iterable[int]) -> str:
    """Return numbers as Linux writes a list of ranges, such as `0-2,4`."""
    return ranges(cores).replace(" ", "")


@dataclass(frozen=True)
class Topology:
    """The cores of a machine as the files below `root`, which is Linux's /sys, describe them."""

    root: Path = Path("/sys")

    def nodes(self, cores: Collection[int]) -> dict[int, set[int]]:
        """Return those of some cores that each NUMA node has, by its number, ascending.

        Nodes without any of them are left out. A kernel that knows no nodes has one, node 0.
        """
        nodes: dict[int, set[int]] = {}
        for path in self.root.glob("devices/system/node/node*/cpulist"):
            of_node = parse_cores(path.read_text(encoding="ascii")) & set(cores)
            if of_node:
                nodes[int(path.parent.name.removeprefix("node"))] = of_node
        return dict(sorted(nodes.items())) or {0: set(cores)}

    def socket(self, core: int) -> int:
        """Return the number of the socket that a core is on."""
        return int(self._read(core, "topology/physical_package_id"))

    def physical_core(self, core: int) -> int:
        """Return the lowest number among the threads of a core's physical core."""
        return min(parse_cores(self._read(core, "topology/thread_siblings_list")))

    def core_complex(self, core: int) -> int:
        """Return the lowest number among the cores that share a core's last cache of data."""
        levels: dict[int, set[int]] = {}
        for cache in self._cpu(core).glob("cache/index*"):
            kind = (cache / "type").read_text(encoding="ascii").strip()
            if kind in ("Data", "Unified"):
                level = int((cache / "level").read_text(encoding="ascii"))
                shared = (cache / "shared_cpu_list").read_text(encoding="ascii")
                levels[level] = parse_cores(shared)
        if not levels:
            raise BadInput(f"{self._cpu(core)}/cache: found no caches; allowed: those of the core")
        return min(levels[max(levels)])

    def node_of_pci_device(self, address: str) -> int:
        """Return the NUMA node of a device by its PCI address, such as `0000:dc:00.0`.

        Linux has -1 on machines of a single node.
        """
        path = self.root / "bus/pci/devices" / address / "numa_node"
        return max(0, int(_read_text(path)))

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


def memory_by_node(numa_maps: Path = Path("/proc/self/numa_maps")) -> dict[int, int]:
    """Return the bytes that a process has on each NUMA node, empty where Linux does not say."""
    sizes: dict[int, int] = {}
    try:
        lines = numa_maps.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        size = PAGE_SIZE.search(line)
        if size is None:
            continue
        for match in NODE_PAGES.finditer(line):
            node = int(match["node"])
            sizes[node] = sizes.get(node, 0) + int(match["pages"]) * int(size[1]) * 1024
    return sizes
