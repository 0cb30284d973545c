"""Ranks meet at one address."""

from __future__ import annotations

import socket

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from harness.core.ports import LOOPBACK, free_port, listen
from harness.training.ranks import Ranks, process_group

ONE_RANK = Ranks(rank=0, local_rank=0, world_size=1)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the port at which the ranks of a test meet."""
    port = free_port()
    monkeypatch.setenv("MASTER_ADDR", LOOPBACK)
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    return port


def test_rank_0_listens_at_the_address_where_ranks_meet_and_at_no_other(port: int) -> None:
    with process_group(ONE_RANK, torch.device("cpu"), needed=True, timeout=60):
        listening = []
        for connection in psutil.Process().net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                listening.append(connection.laddr.ip)
        assert listening == [LOOPBACK]
    dist.destroy_process_group()  # it would end with this process only


def test_a_rank_comes_to_the_store_as_soon_as_rank_0_listens(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that came before that would wait until torch tries again."""
    servers: list[socket.socket] = []

    def begin_to_listen(seconds: float) -> None:
        assert seconds < 0.05
        servers.append(listen(LOOPBACK, port))

    def come(*_: object, **__: object) -> None:
        raise AssertionError(f"came when {len(servers)} listened")

    monkeypatch.setattr("harness.core.ports.time.sleep", begin_to_listen)
    monkeypatch.setattr("harness.training.ranks.TCPStore", come)
    rank_1 = Ranks(rank=1, local_rank=1, world_size=2)
    joins = process_group(rank_1, torch.device("cpu"), needed=True, timeout=60)
    with pytest.raises(AssertionError, match="came when 1 listened"), joins:
        pass
    servers[0].close()


def test_a_launchers_store_is_used_where_there_is_one(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with process_group(ONE_RANK, torch.device("cpu"), needed=True, timeout=60):
        assert store.num_keys() > 0
    dist.destroy_process_group()
