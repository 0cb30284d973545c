"""One sum over all ranks, as every trial does many: `python -m harness.slurm.doctor.reduce FOLDER DEVICE` at each rank."""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist

from harness.core.errors import one_line
from harness.core.processes import die_with_parent
from harness.training.ranks import Ranks, choose_device, process_group

PATIENCE = 60.0  # seconds that a rank waits for the others


def main() -> None:
    """Rank 0 prints JSON; a rank that fails prints one line that says which and why."""
    die_with_parent()
    ranks = Ranks.from_environment()
    try:
        device = choose_device(sys.argv[2], ranks)  # type: ignore[arg-type]
        began = time.perf_counter()
        with process_group(ranks, device, needed=True, timeout=PATIENCE):
            one = torch.ones(1, device=device)
            dist.all_reduce(one)
            found = {
                "backend": dist.get_backend(),
                "sum": one.item(),
                "seconds": time.perf_counter() - began,
            }
        if ranks.is_rank_0:
            print(json.dumps(found), flush=True)
    except Exception as error:
        print(
            f"rank {ranks.rank} on {ranks.host}: {type(error).__name__}: {one_line(error)}",
            flush=True,
        )
        os._exit(1)


if __name__ == "__main__":
    main()
