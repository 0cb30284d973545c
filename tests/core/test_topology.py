"""Which cores share what, as Linux says it, read from folders that look like its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import BadInput
from harness.core.topology import Topology, format_cores, memory_by_node, parse_cores
from tests.support.topology import fake_topology


@pytest.mark.parametrize(
    ("text", "cores"), [("0-2,4\n", {0, 1, 2, 4}), ("7", {7}), ("\n", set()), ("0,2-3", {0, 2, 3})]
)
def test_a_list_of_cores_is_read_and_written_as_linux_does(text: str, cores: set[int]) -> None:
    assert parse_cores(text) == cores
    assert format_cores(cores) == text.strip()


def test_nodes_have_the_cores_that_may_be_used(tmp_path: Path) -> None:
    topology = fake_topology(tmp_path)
    assert topology.nodes(range(16)) == {
        0: {0, 1, 8, 9},
        1: {2, 3, 10, 11},
        2: {4, 5, 12, 13},
        3: {6, 7, 14, 15},
    }
    assert topology.nodes([3, 4, 10]) == {1: {3, 10}, 2: {4}}


def test_a_kernel_without_nodes_has_one(tmp_path: Path) -> None:
    assert Topology(tmp_path).nodes([0, 1]) == {0: {0, 1}}


def test_this_machine_is_read() -> None:
    topology = Topology()
    (core, *_) = next(iter(topology.nodes(range(10_000)).values()))
    assert topology.physical_core(core) <= core
    assert topology.socket(core) >= 0


def test_what_linux_does_not_say_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cpu3/topology/physical_package_id: can't be read"):
        Topology(tmp_path).socket(3)


def test_memory_is_counted_by_node(tmp_path: Path) -> None:
    maps = tmp_path / "numa_maps"
    maps.write_text(
        "55cc default file=/bin/head mapped=2 N0=2 kernelpagesize_kB=4\n"
        "7f00 default anon=5 dirty=5 N0=1 N1=4 kernelpagesize_kB=4\n"
        "7f80 default anon=1 dirty=1 N1=1 kernelpagesize_kB=2048\n"
        "7fff default\n",
        encoding="ascii",
    )
    assert memory_by_node(maps) == {0: 3 * 4096, 1: 4 * 4096 + 2**21}
    assert memory_by_node(tmp_path / "none") == {}
