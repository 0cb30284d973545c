"""What a user would run under torchrun instead of a cell: the MLP with DDP, 20 steps, then the accuracy.

`torchrun --standalone --nproc-per-node=2 tests/programs/perf/torchrun_script.py LEARNING_RATE`
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from workloads.images import Digits
from workloads.mlp import MLP
from workloads.mlp_settings import MLPOptions

STEPS = 20
RANK_BATCH = 32  # samples of each rank


def main() -> None:
    """Train, and print the accuracy at rank 0."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    workload = MLP(MLPOptions(lr=float(sys.argv[1])), Digits())
    splits = workload.splits()
    model = workload.build_model()
    replica = DistributedDataParallel(model)
    optimizer = workload.optimizer(model)
    order = torch.randperm(len(splits.train))[rank::world_size].tolist()
    for step in range(STEPS):
        batch = splits.train.batch(order[step * RANK_BATCH :][:RANK_BATCH])
        optimizer.zero_grad()
        loss = workload.loss(replica, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    if rank == 0:
        images, labels = splits.test.batch(range(len(splits.test)))
        with torch.no_grad():
            logits = model.eval()(images)
        accuracy = (logits.argmax(1) == labels).double().mean()
        print(f"loss {float(cross_entropy(logits, labels)):.3f}, accuracy {float(accuracy):.3f}")
    dist.barrier()  # without it, rank 1 can abort when rank 0 has closed its connection
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
