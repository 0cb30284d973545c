"""The ranks of a trial: this process's number among them, how they meet, and how they communicate.

This is the only module that reads the variables by which launchers number ranks. Everybody else is
given a `Ranks`, so it does not matter which launcher started a trial.
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from harness.core.errors import BadInput
from harness.core.ports import listen, wait_for_listener

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among the ranks of a trial."""

    rank: int
    local_rank: int  # on this node
    world_size: int
    may_be_bound: bool = False  # whether the launcher may show each rank its own GPU only
    device: torch.device = CPU  # this rank's own, once it has joined the others

    @staticmethod
    def from_environment() -> Ranks:
        """Read the variables of torchrun, else those of srun, else return a single rank.

        Of Slurm's variables it takes one that only steps have. A batch script has SLURM_PROCID too,
        and is no rank.
        """
        is_slurm_step = "RANK" not in os.environ and "SLURM_STEP_NUM_TASKS" in os.environ
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
        if is_slurm_step:
            names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS")
        return Ranks(
            rank=int(os.environ.get(names[0], 0)),
            local_rank=int(os.environ.get(names[1], 0)),
            world_size=int(os.environ.get(names[2], 1)),
            may_be_bound=is_slurm_step,
        )

    def export(self) -> None:
        """Set torchrun's variables, which libraries and workloads may read, under any launcher."""
        os.environ["RANK"] = str(self.rank)
        os.environ["LOCAL_RANK"] = str(self.local_rank)
        os.environ["WORLD_SIZE"] = str(self.world_size)

    @property
    def host(self) -> str:
        """Return Slurm's name of this node, or the machine's own name."""
        return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def choose_device(
    requested: Literal["auto", "cpu", "cuda"], ranks: Ranks, gpus: Sequence[int] = ()
) -> torch.device:
    """Return the rank's own device, and make it the current one.

    `gpus` are those of the trial's lane, all of them if there are none. Raises BadInput if a GPU is
    requested, or there are GPUs, and there is none for this rank.
    """
    if requested == "cpu" or (requested == "auto" and not torch.cuda.is_available()):
        return CPU
    available = gpus or range(torch.cuda.device_count())
    # Slurm may bind each task to one GPU, which is then the only one that it sees.
    is_bound = ranks.may_be_bound and len(available) == 1
    index = 0 if is_bound else ranks.local_rank
    if index >= len(available):
        raise BadInput(
            f"device: found {len(available)} GPUs; needed: one for local rank {ranks.local_rank}"
        )
    device = torch.device("cuda", available[index])
    torch.cuda.set_device(device)
    return device


@contextmanager
def process_group(
    ranks: Ranks, device: torch.device, *, needed: bool, timeout: float, offloads: bool = False
) -> Iterator[None]:
    """Join the other ranks for as long as the block lasts: with gloo on CPUs, with NCCL on GPUs.

    With both if parameters are offloaded from GPUs (`offloads`), as their norm and their state are
    gathered on the CPUs then. `timeout` is how many seconds a rank waits for the others in a
    collective.

    The block is the last that this process does with other ranks. A gloo group ends with the
    process: to destroy it takes up to 20 ms, as gloo's thread looks every 10 ms only whether it is
    to end. If the block raises, any process group is left as it is, as the other ranks may never
    come. A DDP object that outlives NCCL's can hang for ever, so the block must drop model and
    optimizer before it ends.
    """
    if not needed:
        yield
        return
    on_gpu = device.type == "cuda"
    backend = "nccl" if on_gpu else "gloo"
    if on_gpu and offloads:
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(
        backend,
        store=_join_store(ranks, timedelta(seconds=timeout)),
        rank=ranks.rank,
        world_size=ranks.world_size,
        timeout=timedelta(seconds=timeout),
        device_id=device if on_gpu else None,
    )
    yield
    dist.barrier()  # no rank may end while another still needs it
    if on_gpu:
        gc.collect()
        dist.destroy_process_group()


def _join_store(ranks: Ranks, timeout: timedelta) -> Store:
    """Return the store at MASTER_ADDR and MASTER_PORT through which ranks find each other.

    A launcher that runs on every node has one there already. Otherwise rank 0 makes it, as torch
    would, but one that listens at that address alone: whoever reaches a store may read and write it.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listening: dict[str, Any] = {"is_master": False}
    if ranks.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        listening = {"is_master": True, "master_listen_fd": listen(address, port).detach()}
    else:
        # A rank that is too early would be refused, and torch tries again only 0.25 to 0.75 s later.
        wait_for_listener(address, port)
    return TCPStore(address, port, ranks.world_size, timeout=timeout, **listening)


# Seeds


def seed_everything(seed: int, *stream: int) -> None:
    """Seed Python, NumPy and torch with `derive_seed(seed, *stream)`, on every device."""
    derived = derive_seed(seed, *stream)
    seed_generators(derived, CPU)
    torch.cuda.manual_seed_all(derived)  # does nothing without a GPU


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the generators that code on this device draws from, with 63 bits.

    Unlike torch.manual_seed, which seeds every device, it is cheap enough for each step.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)


def generator_states(device: torch.device) -> dict[str, Any]:
    """Return the states of all generators that code on this device draws from, as values torch may load."""
    algorithm, keys, *position = np.random.get_state()
    states: dict[str, Any] = {
        "python": random.getstate(),
        # An array of NumPy would need pickle, which `weights_only=True` refuses.
        "numpy": (algorithm, np.asarray(keys).tolist(), *position),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_generators(states: dict[str, Any], device: torch.device) -> None:
    """Restore the states that `generator_states` returned."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


@contextmanager
def generators_kept(device: torch.device) -> Iterator[None]:
    """Leave the generators that code on this device draws from as they are, whatever a block does."""
    states = generator_states(device)
    try:
        yield
    finally:
        restore_generators(states, device)


def derive_seed(seed: int, *stream: int) -> int:
    """Return 63 bits that depend on all the numbers.

    Streams of one seed, such as its ranks, are as independent of each other as seeds are.
    """
    digest = hashlib.sha256(repr((seed, *stream)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


# Communication. Without a process group, each function returns its result for a single rank.


def all_reduce_min(*values: int) -> list[int]:
    """Return the smallest of all ranks' numbers, position by position, at every rank."""
    if not dist.is_initialized():
        return list(values)
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    smallest = torch.tensor(values, dtype=torch.int64, device=device)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    return [int(value) for value in smallest]


def gather(value: Any) -> list[Any]:
    """Return every rank's value at rank 0, by rank; an empty list at the other ranks.

    Tensors in it must be on the CPU.
    """
    if not dist.is_initialized():
        return [value]
    values = []
    if dist.get_rank() == 0:
        values = [None] * dist.get_world_size()
    dist.gather_object(value, values or None)
    return values


def broadcast_from_rank_0(value: Any) -> Any:
    """Return rank 0's value at every rank, made of what `gather` allows."""
    values = [value]
    if dist.is_initialized():
        dist.broadcast_object_list(values)
    return values[0]
