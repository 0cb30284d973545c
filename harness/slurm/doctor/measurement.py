"""Measures nodes: a short training at every rank, and an all-reduce between every two nodes.

All ranks train the same model from the same seed, each by itself, so that they must compute the same
bits. They begin each window together, so that windows are pairs: what slows all nodes down at that
time counts for none of them.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from harness.records.decode import FileFormat
from harness.slurm.doctor.programs import RANK_SECONDS, run_program, run_rank
from harness.statistics.nodes import NodeSpeed, node_speeds

if TYPE_CHECKING:
    import torch
    from torch import nn

    from harness.launch.launcher import Launcher
    from harness.training.ranks import Ranks

WINDOWS = 20
STEPS = 10  # of a window
LAYERS = 3
CPU_SIZE, GPU_SIZE = 384, 4096  # features of a layer; a batch has a third as many samples
EXCHANGES = 5  # all-reduces between two nodes, of which the median counts
EXCHANGED_BYTES = 2**24
COMMAND_SECONDS = 400.0  # that the whole may take, start of the ranks included
REPORT_FORMAT = FileFormat(name="measurement of nodes")
# cuBLAS computes the same bits again only with this; it reads the variable when it starts.
DETERMINISTIC_VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@dataclass(frozen=True, kw_only=True)
class RankTraining:
    """What the training of one rank came to."""

    rank: int
    node: str  # name
    device: str  # kind of GPU, or the instructions of the CPU that torch uses
    digest: str  # of the parameters at the end
    seconds: Sequence[float]  # of each window, the first one left out


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """An all-reduce between two nodes, by their first ranks, while other pairs of nodes do the same."""

    nodes: tuple[str, str]
    bytes_per_second: float  # that each of them sends and receives
    is_right: bool  # whether the sum is


@dataclass(frozen=True, kw_only=True)
class NodeMeasurement:
    """Everything that the ranks have measured."""

    trainings: Sequence[RankTraining]  # by rank
    exchanges: Sequence[Exchange]

    def speeds(self) -> list[NodeSpeed]:
        """Return the speed of each node by its slowest rank in each window, the slowest first."""
        windows = []
        for seconds in zip(*(training.seconds for training in self.trainings), strict=True):
            slowest: dict[str, float] = {}
            for training, value in zip(self.trainings, seconds, strict=True):
                slowest[training.node] = max(value, slowest.get(training.node, 0.0))
            windows.append({node: -math.log(value) for node, value in slowest.items()})
        return node_speeds(windows, "windows")


def measure_nodes(
    launcher: Launcher, folder: Path, ranks: int, device: str, threads: int
) -> NodeMeasurement | str:
    """Start ranks that measure their nodes; return what they measured, or why they did not.

    `threads` are those of a rank; the other arguments are those of `run_program`.
    """
    module = "harness.slurm.doctor.measurement"
    kind = (NodeMeasurement, REPORT_FORMAT)
    return run_program(
        launcher, module, folder, ranks, device, kind, seconds=COMMAND_SECONDS, threads=threads
    )


def _measure_rank(ranks: Ranks, device: torch.device) -> NodeMeasurement:
    """Train, and exchange tensors with every other node; rank 0 returns what all ranks measured."""
    from harness.training.ranks import gather, process_group

    with process_group(ranks, device, needed=True, timeout=RANK_SECONDS):
        trainings = gather(asdict(_train(ranks, device)), ranks)
        exchanges = gather([asdict(done) for done in _exchange_with_all(ranks, device)], ranks)
    return NodeMeasurement(
        trainings=[RankTraining(**training) for training in trainings],
        exchanges=[Exchange(**exchange) for of_rank in exchanges for exchange in of_rank],
    )


def _train(ranks: Ranks, device: torch.device) -> RankTraining:
    """Train a few linear layers on one batch, in windows that all ranks begin together."""
    import torch
    from torch import nn

    from harness.training.fingerprint import digest_parameters
    from harness.training.ranks import barrier

    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    on_gpu = device.type == "cuda"
    size = GPU_SIZE if on_gpu else CPU_SIZE
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(size, size), nn.LayerNorm(size), nn.GELU()]
    # On the CPU first, whose generator gives the same numbers on every machine.
    model = nn.Sequential(*layers).to(device)
    batch, target = (torch.randn(size // 3, size).to(device) for _ in range(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    seconds = []
    for _ in range(WINDOWS + 1):
        barrier()
        started = time.perf_counter()
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss: torch.Tensor = nn.functional.mse_loss(model(batch), target)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    name = torch.backends.cpu.get_cpu_capability()
    if on_gpu:
        name = torch.cuda.get_device_name()
    return RankTraining(
        rank=ranks.rank,
        node=ranks.host,
        device=name,
        digest=digest_parameters(model),
        seconds=seconds[1:],
    )


def _exchange_with_all(ranks: Ranks, device: torch.device) -> list[Exchange]:
    """All-reduce between this rank's node and every other one, in rounds of all pairs at once.

    The first rank of each node takes part. Each pair is reported by the rank with the lower number.
    """
    from harness.training.ranks import barrier, broadcast_from_rank_0, gather

    hosts = broadcast_from_rank_0(gather(ranks.host, ranks))
    first_ranks = {host: rank for rank, host in reversed(list(enumerate(hosts)))}
    exchanges = []
    for pairs in rounds(sorted(first_ranks.values())):
        barrier()
        for pair in pairs:
            if ranks.rank in pair:
                exchange = _exchange(pair, ranks.rank, hosts, device)
                if ranks.rank == pair[0]:
                    exchanges.append(exchange)
    return exchanges


def rounds(ranks: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Yield rounds in which every rank has another partner, until each had all, the lower one first.

    This is the circle method of tournaments: one stays, the others move on by a place.
    """
    circle: list[int | None] = list(ranks)
    if len(circle) % 2:
        circle.append(None)  # whoever meets it has no partner in this round
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = []
        for a, b in zip(circle[:half], reversed(circle[half:]), strict=True):
            if a is not None and b is not None:
                pairs.append((min(a, b), max(a, b)))
        yield pairs
        circle = [circle[0], circle[-1], *circle[1:-1]]


def _exchange(
    pair: tuple[int, int], rank: int, hosts: Sequence[str], device: torch.device
) -> Exchange:
    """Add up a tensor of each of two ranks at both, several times; the first time is not counted."""
    import torch
    import torch.distributed as dist

    partner = pair[1] if rank == pair[0] else pair[0]
    own = torch.full((EXCHANGED_BYTES // 4,), float(rank + 1), device=device)
    received = torch.empty_like(own)
    seconds = []
    for _ in range(EXCHANGES + 1):
        started = time.perf_counter()
        operations = [
            dist.P2POp(dist.isend, own, partner),
            dist.P2POp(dist.irecv, received, partner),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        total = own + received
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    is_right = bool((total == float(sum(pair) + 2)).all())
    return Exchange(
        nodes=(hosts[pair[0]], hosts[pair[1]]),
        bytes_per_second=EXCHANGED_BYTES / median(seconds[1:]),
        is_right=is_right,
    )


if __name__ == "__main__":
    os.environ.update(DETERMINISTIC_VARIABLES)
    run_rank(_measure_rank)
