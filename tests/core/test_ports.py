"""The address and the port at which ranks meet."""

from __future__ import annotations

import socket

import psutil
import pytest

from harness.core.errors import BadInput
from harness.core.ports import free_port, node_address


class TestNodeAddress:
    def test_without_an_interface_is_the_node_name_in_slurm(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SLURMD_NODENAME", "n1")
        assert node_address(None) == "n1"

    def test_of_an_interface_is_its_ip_address(self) -> None:
        loopback = next(
            name
            for name, addresses in psutil.net_if_addrs().items()
            if any(address.address == "127.0.0.1" for address in addresses)
        )
        assert node_address(loopback) == "127.0.0.1"

    def test_of_an_unknown_interface_is_refused(self) -> None:
        with pytest.raises(
            BadInput, match=r"GLOO_SOCKET_IFNAME: found 'ib7' without an address; allowed: "
        ):
            node_address("ib7")


class TestFreePort:
    def test_can_be_listened_on(self) -> None:
        port = free_port()
        with socket.create_server(("", port)) as server:
            assert server.getsockname()[1] == port > 0
