"""Ranks meet at one address."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from harness.core.ports import LOOPBACK, free_port
from harness.training.ranks import Ranks, broadcast_from_rank_0, gather, process_group

ONE_RANK = Ranks(rank=0, local_rank=0, world_size=1)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the port at which the ranks of a test meet."""
    port = free_port()
    monkeypatch.setenv("MASTER_ADDR", LOOPBACK)
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    return port


@pytest.fixture
def joined(port: int) -> Iterator[int]:
    """Join a process group of one rank; return the port of its store."""
    with process_group(ONE_RANK, torch.device("cpu"), needed=True, timeout=60):
        yield port
    dist.destroy_process_group()  # it would end with this process only


def addresses(port: int) -> list[str]:
    """Return the addresses at which this process listens on a port."""
    connections = psutil.Process().net_connections("tcp")
    return [
        connection.laddr.ip
        for connection in connections
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    ]


def test_rank_0_listens_at_the_address_where_ranks_meet_and_at_no_other(joined: int) -> None:
    assert addresses(joined) == [LOOPBACK]


def test_values_arrive_as_they_were_sent(joined: int) -> None:
    value = {"numbers": [1, 0.1, None], "text": "a", "state": (3, (1, 2), None)}
    assert broadcast_from_rank_0(value) == value
    (gathered,) = gather({"rows": torch.tensor([[0.1, 2.0]], dtype=torch.float64)})
    assert gathered["rows"].tolist() == [[0.1, 2.0]]
    assert gathered["rows"].dtype == torch.float64


def test_a_launchers_store_is_used_where_there_is_one(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with process_group(ONE_RANK, torch.device("cpu"), needed=True, timeout=60):
        assert store.num_keys() > 0
    dist.destroy_process_group()
