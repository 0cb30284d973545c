"""What a process finds on its node: its cores, and an address and a port to meet others at."""

from __future__ import annotations

import json
import os
import socket

import psutil
import pytest

from harness.core.errors import BadInput
from harness.core.ports import free_port, node_address
from tests.core.test_processes import run_program

CORES = """
import json, os
from harness.core.cores import usable_cores
import torch
torch.ones(2).sum()
from harness.records.environment import describe_hardware
bound = len(os.sched_getaffinity(0))
print(json.dumps([bound, len(usable_cores()), describe_hardware().usable_cores]))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is all that there is")
def test_threads_that_openmp_binds_change_no_name_of_the_hardware() -> None:
    usable = len(os.sched_getaffinity(0))
    printed = run_program(CORES, OMP_PROC_BIND="true", OMP_NUM_THREADS="1")
    assert json.loads(printed) == [1, usable, usable]


def test_the_address_is_that_of_an_interface_or_the_nodes_name_in_slurm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    assert node_address(None) == "n1"
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            assert node_address(name) == "127.0.0.1"
    with pytest.raises(BadInput, match="GLOO_SOCKET_IFNAME: found 'ib7' without an address; allow"):
        node_address("ib7")


def test_a_free_port_can_be_listened_on() -> None:
    port = free_port()
    with socket.create_server(("", port)) as server:
        assert server.getsockname()[1] == port > 0
