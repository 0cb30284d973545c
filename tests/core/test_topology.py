"""Which cores share a physical core, as Linux says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import BadInput
from harness.core.topology import Topology, parse_cores


@pytest.mark.parametrize(
    ("text", "cores"), [("0-2,4\n", {0, 1, 2, 4}), ("7", {7}), ("\n", set()), ("0,2-3", {0, 2, 3})]
)
def test_a_list_of_cores_is_read_as_linux_writes_it(text: str, cores: set[int]) -> None:
    assert parse_cores(text) == cores


def test_this_machine_is_read() -> None:
    topology = Topology()
    assert topology.physical_core(0) == 0
    assert topology.socket(0) >= 0


def test_what_linux_does_not_say_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cpu3/topology/physical_package_id: can't be read"):
        Topology(tmp_path).socket(3)
