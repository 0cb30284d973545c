"""A machine that does not exist, as folders in place of Linux's /sys."""

from __future__ import annotations

from pathlib import Path

from harness.core.topology import Topology, format_cores

NODES = ((0, 1), (2, 3), (4, 5), (6, 7))  # the first threads of each node's physical cores
GPU = "0000:dc:00.0"  # on node 2


def fake_topology(root: Path) -> Topology:
    """Return two sockets of two nodes of two physical cores of two threads, each with its own cache.

    Physical core N has the threads N and N + 8; the nodes of socket 0 are 0 and 1.
    """
    for node, physical_cores in enumerate(NODES):
        cores = [*physical_cores, *(core + 8 for core in physical_cores)]
        _write(root / f"devices/system/node/node{node}/cpulist", format_cores(cores))
        for core in cores:
            folder = root / f"devices/system/cpu/cpu{core}"
            siblings = format_cores([core % 8, core % 8 + 8])
            _write(folder / "topology/physical_package_id", str(node // 2))
            _write(folder / "topology/thread_siblings_list", siblings)
            for index, kind, level in ((0, "Data", 1), (1, "Instruction", 1), (2, "Unified", 3)):
                _write(folder / f"cache/index{index}/type", kind)
                _write(folder / f"cache/index{index}/level", str(level))
                _write(folder / f"cache/index{index}/shared_cpu_list", siblings)
    _write(root / f"bus/pci/devices/{GPU}/numa_node", "2")
    return Topology(root)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="ascii")
