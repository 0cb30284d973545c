"""What somebody writes who trains the MLP by one loop and needs nothing else of it.

    python -m tests.programs.perf.plain_loop EPOCHS [FOLDER OF IDX FILES]

It draws the random numbers of a trial with the seed 0, so that it must compute the same losses.
Prints the seconds and CPU seconds of all epochs but the first, and the loss of the last step.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from harness.training.ranks import derive_seed, seed_everything
from workloads.mlp import MLP
from workloads.options import MLPOptions
from workloads.sources import Digits, Idx

BATCH = 64
SEED = 0


def main(epochs: int, folder: str | None) -> None:
    """Train, and print what it took."""
    torch.set_num_threads(1)
    workload = MLP(MLPOptions(), Idx(source="idx", path=Path(folder)) if folder else Digits())
    images, labels = workload.images.splits.train.batch(range(len(workload.images.splits.train)))
    seed_everything(SEED)
    model = workload.build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=workload.options.lr, fused=True)
    seed_everything(SEED, 0)
    losses: list[torch.Tensor] = []
    for epoch in range(epochs):
        if epoch == 1:
            began, cpu_began = time.perf_counter(), time.process_time()
        drawn = np.random.default_rng([derive_seed(SEED), epoch]).permutation(len(images))
        order = torch.from_numpy(drawn)
        for start in range(0, len(images) - BATCH + 1, BATCH):
            rows = order[start : start + BATCH]
            logits = model(images.index_select(0, rows))
            loss = cross_entropy(logits, labels.index_select(0, rows))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
    took = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu_began}
    print(json.dumps({**took, "loss": float(losses[-1])}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
