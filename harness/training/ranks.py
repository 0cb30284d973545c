"""Ranks: the only reader of their environment variables; process group, seeds, and what ranks tell each other."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from harness.core.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among the ranks of a trial."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int | None = None  # of this node; None where the launcher does not say
    may_be_bound: bool = False  # whether the launcher may show each rank its own GPU alone

    @staticmethod
    def from_environment() -> Ranks:
        """What torchrun says, else what srun says of this step's tasks; without a launcher, one rank alone.

        Of the variables that Slurm sets, those of a step: a batch script sees the others too, and is no rank.
        """
        read = os.environ.get
        slurm = "RANK" not in os.environ and "SLURM_STEP_NUM_TASKS" in os.environ
        here = read("LOCAL_WORLD_SIZE")
        rank, local, size = (
            ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS")
            if slurm
            else ("RANK", "LOCAL_RANK", "WORLD_SIZE")
        )
        return Ranks(
            rank=int(read(rank, "0")),
            local_rank=int(read(local, "0")),
            world_size=int(read(size, "1")),
            local_world_size=int(here) if here else None,
            may_be_bound=slurm,
        )

    def export(self) -> None:
        """Set torchrun's variables for libraries and workloads that read them, whoever has started this rank."""
        os.environ.update(
            RANK=str(self.rank), LOCAL_RANK=str(self.local_rank), WORLD_SIZE=str(self.world_size)
        )
        if self.local_world_size is not None:
            os.environ["LOCAL_WORLD_SIZE"] = str(self.local_world_size)

    @property
    def is_rank_0(self) -> bool:
        return self.rank == 0

    @property
    def host(self) -> str:
        """What Slurm calls this node, or the machine's own name."""
        return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def choose_device(requested: Literal["auto", "cpu", "cuda"], ranks: Ranks) -> torch.device:
    """The rank's own device; raises BadInput if a GPU was asked for and there is none for it."""
    if requested == "cpu" or (requested == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    visible = torch.cuda.device_count()
    index = 0 if ranks.may_be_bound and visible == 1 else ranks.local_rank
    if index >= visible:
        raise BadInput(
            f"device: found {visible} GPUs; needed: one for local rank {ranks.local_rank}"
        )
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


@contextmanager
def process_group(
    ranks: Ranks, device: torch.device, *, needed: bool, timeout: float
) -> Iterator[None]:
    """gloo on CPUs, NCCL on GPUs, for as long as the block lasts; left at once if the block raises.

    A DDP object that outlives its process group can hang for ever, so the block must drop model and optimizer.
    """
    if not needed:
        yield
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    bound = device if device.type == "cuda" else None
    dist.init_process_group(
        backend,
        rank=ranks.rank,
        world_size=ranks.world_size,
        timeout=timedelta(seconds=timeout),
        device_id=bound,
    )
    yield
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def seed_everything(seed: int, *stream: int) -> None:
    """Seed Python, NumPy and torch. Streams of one seed, such as ranks, are independent of each other."""
    derived = derive_seed(seed, *stream)
    random.seed(derived)
    np.random.seed(derived % 2**32)
    torch.manual_seed(derived)


def derive_seed(seed: int, *stream: int) -> int:
    """63 bits that depend on all the numbers."""
    digest = hashlib.sha256(repr((seed, *stream)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def all_reduce_min(device: torch.device, *values: int) -> list[int]:
    """Of each value the least of all ranks', at every rank."""
    if not dist.is_initialized():
        return list(values)
    everyone = torch.tensor(values, dtype=torch.int64, device=device)
    dist.all_reduce(everyone, op=dist.ReduceOp.MIN)
    return [int(value) for value in everyone]


def barrier() -> None:
    """Wait until all ranks are here."""
    if dist.is_initialized():
        dist.barrier()


def gather(value: Any, ranks: Ranks) -> list[Any]:
    """Every rank's value at rank 0, by rank; an empty list elsewhere."""
    if not dist.is_initialized():
        return [value]
    everyone: list[Any] | None = [None] * ranks.world_size if ranks.is_rank_0 else None
    dist.gather_object(value, everyone)
    return everyone or []


def broadcast_from_rank_0(value: Any) -> Any:
    """Rank 0's value, at every rank."""
    if not dist.is_initialized():
        return value
    box = [value]
    dist.broadcast_object_list(box)
    return box[0]


@torch.no_grad()
def share_buffers(model: nn.Module) -> None:
    """Give every rank rank 0's buffers, as DDP does, so that all evaluate the same model."""
    if dist.is_initialized():
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
