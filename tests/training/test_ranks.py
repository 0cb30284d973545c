"""Which rank a process is, under any launcher, and which GPU it takes."""

from __future__ import annotations

import os

import pytest
import torch

from harness.core.errors import BadInput
from harness.training.ranks import Ranks, choose_device

SLURM_STEP = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
}
TORCHRUN = {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "4"}
BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}


def read_ranks(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Ranks:
    for name in {*SLURM_STEP, *TORCHRUN}:
        # Set first, so that a variable that the test exports is removed after it.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return Ranks.from_environment()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (SLURM_STEP, (5, 1, 8)),
        (TORCHRUN, (3, 3, 4)),
        (SLURM_STEP | TORCHRUN, (3, 3, 4)),
        (BATCH_SCRIPT, (0, 0, 1)),
        ({}, (0, 0, 1)),
    ],
    ids=["step", "torchrun", "torchrun in a step", "by hand in a batch script", "by hand"],
)
def test_a_rank_is_the_same_under_any_launcher(
    variables: dict[str, str], expected: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = read_ranks(monkeypatch, **variables)
    assert (ranks.rank, ranks.local_rank, ranks.world_size) == expected


def test_workloads_see_the_same_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    read_ranks(monkeypatch, **SLURM_STEP).export()
    exported = {name: os.environ[name] for name in TORCHRUN}
    assert exported == {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("variables", "visible", "index"),
    [(SLURM_STEP, 4, 1), (SLURM_STEP, 1, 0), (TORCHRUN, 4, 3), (TORCHRUN, 1, None)],
)
def test_each_rank_has_its_own_gpu(
    variables: dict[str, str], visible: int, index: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm may show a task its own GPU only; torchrun shows all GPUs of the node to every rank."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    ranks = read_ranks(monkeypatch, **variables)
    if index is None:
        with pytest.raises(BadInput, match="found 1 GPUs; needed: one for local rank 3"):
            choose_device("cuda", ranks)
    else:
        assert choose_device("cuda", ranks) == torch.device("cuda", index)
