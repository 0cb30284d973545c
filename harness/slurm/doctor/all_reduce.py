"""One all-reduce over all ranks, as every trial does many.

That the sum is right shows that the ranks find each other, that the network carries the backend's
traffic, and that each has its device.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.records.decode import FileFormat
from harness.slurm.doctor.programs import RANK_SECONDS, run_program, run_rank

if TYPE_CHECKING:
    import torch

    from harness.launch.launcher import Launcher
    from harness.training.ranks import Ranks

REPORT_FORMAT = FileFormat(name="report of an all-reduce")
COMMAND_SECONDS = 120.0  # that the whole may take, start of the ranks included


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """The outcome of the all-reduce."""

    ranks: int
    backend: str | None = None  # gloo or nccl
    seconds: float | None = None  # until rank 0 had the sum, the rendezvous of the ranks included
    failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class SumReport:
    """What rank 0 prints."""

    backend: str
    sum: float
    seconds: float


def all_reduce(launcher: Launcher, folder: Path, ranks: int, device: str) -> AllReduce:
    """Start ranks that each contribute 1, and return whether their sum is right.

    The arguments are those of `run_program`.
    """
    module = "harness.slurm.doctor.all_reduce"
    kind = (SumReport, REPORT_FORMAT)
    report = run_program(launcher, module, folder, ranks, device, kind, seconds=COMMAND_SECONDS)
    if isinstance(report, str):
        return AllReduce(ranks=ranks, failure=report)
    if report.sum != ranks:
        return AllReduce(ranks=ranks, failure=f"the sum of {ranks} ones is {report.sum:g}")
    return AllReduce(ranks=ranks, backend=report.backend, seconds=report.seconds)


def _sum_over_ranks(ranks: Ranks, device: torch.device) -> SumReport:
    """Add up a 1 of every rank."""
    # Imported here, because the machine that submits needs no torch for its part.
    import torch
    import torch.distributed as dist

    from harness.training.ranks import process_group

    started = time.perf_counter()
    with process_group(ranks, device, needed=True, timeout=RANK_SECONDS):
        total = torch.ones(1, device=device)
        dist.all_reduce(total)
        return SumReport(
            backend=dist.get_backend(), sum=total.item(), seconds=time.perf_counter() - started
        )


if __name__ == "__main__":
    run_rank(_sum_over_ranks)
