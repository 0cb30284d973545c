"""One all-reduce over all ranks, as every trial does many.

Each rank runs `python -m harness.slurm.doctor.all_reduce FOLDER DEVICE`; `all_reduce` starts them
with the launcher that trials use, and judges the sum. That it is right shows that the ranks find
each other, that the network carries the backend's traffic, and that each has its device.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.errors import BadFile, one_line
from harness.core.paths import TrialFolder
from harness.core.processes import end_process, output_lines
from harness.records.decode import FileFormat, decode_text

if TYPE_CHECKING:
    from harness.launch.launcher import Launcher
    from harness.training.ranks import Ranks

RANK_SECONDS = 60.0  # that a rank waits for the others
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

    `folder` is an argument that every program of a rank has; nothing is written there. `device` is
    as in a cluster profile.
    """
    command = launcher.command(
        "harness.slurm.doctor.all_reduce", TrialFolder(folder), ranks, [device]
    )
    # Without `parent_variables`: the parent of a rank in a Slurm step is no process of ours.
    lines = output_lines(command, launcher.variables(1, {}), COMMAND_SECONDS)
    for line in lines:
        if line.startswith("{"):
            try:
                report = decode_text(SumReport, line, "rank 0", REPORT_FORMAT)
            except BadFile as error:
                return AllReduce(ranks=ranks, failure=str(error))
            if report.sum == ranks:
                return AllReduce(ranks=ranks, backend=report.backend, seconds=report.seconds)
    return AllReduce(ranks=ranks, failure=_failure(lines))


def _failure(lines: Sequence[str]) -> str:
    """Return the line of the rank that failed first, else the last line of the output.

    If one rank fails, the others lose their connection to it and write lines of their own.
    """
    for line in lines:
        if line.startswith("rank "):
            return line
    return lines[-1] if lines else "no rank wrote anything"


def main() -> None:
    """Take part as one rank.

    Rank 0 prints JSON. A rank that fails prints a line that names it, and exits with 1.
    """
    from harness.training.interruption import before_torch

    before_torch()
    from harness.training.ranks import Ranks

    ranks = Ranks.from_environment()
    try:
        report = _sum_over_ranks(ranks, sys.argv[2])
    except Exception as error:
        message = f"{type(error).__name__}: {one_line(error)}"
        print(f"rank {ranks.rank} on {ranks.host}: {message}", flush=True)
        # Not sys.exit: threads of a broken process group may keep the interpreter from ending.
        end_process(1)
    if ranks.is_rank_0:
        print(json.dumps(report), flush=True)
    end_process(0)  # at once: to clear all that torch has loaded takes half a second


def _sum_over_ranks(ranks: Ranks, device_name: str) -> dict[str, Any]:
    """Add up a 1 of every rank, and return the sum, the backend and the seconds that it took."""
    # Imported here, because the machine that submits needs no torch for its part.
    import torch
    import torch.distributed as dist

    from harness.training.ranks import choose_device, process_group

    device = choose_device(device_name, ranks)  # type: ignore[arg-type]
    started = time.perf_counter()
    with process_group(ranks, device, needed=True, timeout=RANK_SECONDS):
        total = torch.ones(1, device=device)
        dist.all_reduce(total)
        return {
            "backend": dist.get_backend(),
            "sum": total.item(),
            "seconds": time.perf_counter() - started,
        }


if __name__ == "__main__":
    main()
