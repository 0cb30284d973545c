"""Trains with DDP over gloo on two ranks that share one device, and once in one process.

NCCL refuses two ranks on one GPU, and gloo copies through the host. The harness gives each rank a
device of its own, so that this is plain torch with a workload of the harness.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from harness.core.ports import free_port
from tests.programs.gpu.arguments import leave, parser
from workloads.images import Digits
from workloads.mlp import MLP
from workloads.mlp_settings import MLPOptions

STEPS = 10
BATCH_SIZE = 64
TOLERANCE = 1e-4  # of parameters, after sums in another order
TIMEOUT = timedelta(seconds=60)


def train(device: torch.device, rank: int, world_size: int) -> torch.Tensor:
    """Return all parameters of an MLP after a few steps, in one vector on the CPU."""
    torch.manual_seed(0)
    workload = MLP(MLPOptions(dropout=0.0), Digits())
    samples = workload.splits().train
    model = workload.build_model().to(device)
    replica: torch.nn.Module = model
    if world_size > 1:
        replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    share = BATCH_SIZE // world_size
    for step in range(STEPS):
        begin = step * BATCH_SIZE + rank * share
        batch = tuple(tensor.to(device) for tensor in samples.batch(range(begin, begin + share)))
        optimizer.zero_grad()
        workload.loss(replica, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).cpu()


def run_rank(folder: Path, device: torch.device) -> None:
    """Train as one of two ranks, and leave the parameters."""
    dist.init_process_group("gloo", timeout=TIMEOUT)
    rank = dist.get_rank()
    torch.save(train(device, rank, dist.get_world_size()), folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    """Start both ranks, train beside them, and return 1 where parameters are apart."""
    arguments = parser()
    arguments.add_argument("--rank", action="store_true")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    if options.rank:
        run_rank(options.folder, device)
        return 0
    port = str(free_port())
    processes = []
    for rank in range(2):
        variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        environment = {**os.environ, **variables, "MASTER_PORT": port}
        processes.append(subprocess.Popen([sys.executable, *sys.argv, "--rank"], env=environment))
    by_itself = train(device, 0, 1)
    codes = [process.wait() for process in processes]
    if any(codes):
        print(f"ranks: found exit codes {codes}; allowed: 0")
        return 1
    rank0, rank1 = (torch.load(options.folder / f"rank{rank}.pt") for rank in range(2))
    distance = float((rank0 - by_itself).abs().max())
    leave(options.folder, {"ranks alike": torch.equal(rank0, rank1), "from one process": distance})
    return int(not torch.equal(rank0, rank1) or distance > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
