"""Who a rank is, whoever has started it, and which GPU it takes."""

from __future__ import annotations

import os
import socket

import pytest
import torch

from harness.core.errors import BadInput
from harness.training.ranks import Ranks, choose_device

STEP = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8"}
TORCHRUN = {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "4"}
BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}


def ranks(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Ranks:
    for name in {*STEP, *TORCHRUN}:
        monkeypatch.setenv(name, "")  # so that one which is exported goes away with the test
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return Ranks.from_environment()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (STEP, (5, 1, 8)),
        (TORCHRUN, (3, 3, 4)),
        (STEP | TORCHRUN, (3, 3, 4)),
        (BATCH_SCRIPT, (0, 0, 1)),
        ({}, (0, 0, 1)),
    ],
    ids=["step", "torchrun", "torchrun in a step", "by hand in a batch script", "by hand"],
)
def test_whoever_started_it(
    variables: dict[str, str], expected: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ranks(monkeypatch, **variables)
    assert (found.rank, found.local_rank, found.world_size) == expected


def test_its_node_is_the_one_that_slurm_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    assert ranks(monkeypatch).host == socket.gethostname()
    assert ranks(monkeypatch, SLURMD_NODENAME="n2").host == "n2"


def test_workloads_see_the_same_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks(monkeypatch, **STEP).export()
    assert {name: os.environ[name] for name in TORCHRUN} == {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
    }


@pytest.mark.parametrize(
    ("variables", "visible", "index"),
    [(STEP, 4, 1), (STEP, 1, 0), (TORCHRUN, 4, 3), (TORCHRUN, 1, None)],
)
def test_each_rank_has_its_own_gpu(
    variables: dict[str, str], visible: int, index: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm may show a task its own GPU alone; torchrun shows all of the node to everyone."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    found = ranks(monkeypatch, **variables)
    if index is None:
        with pytest.raises(BadInput, match="found 1 GPUs; needed: one for local rank 3"):
            choose_device("cuda", found)
    else:
        assert choose_device("cuda", found) == torch.device("cuda", index)
