"""Programs that the doctor runs at every rank of its job, started as trials' ranks are.

Each rank runs `python -m MODULE FOLDER DEVICE`. Rank 0 prints what was seen, a line of JSON; a rank
that fails prints a line that names it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from harness.core.errors import BadFile, one_line
from harness.core.paths import TrialFolder
from harness.core.processes import end_process, output_lines
from harness.records.decode import FileFormat, decode_text

if TYPE_CHECKING:
    import torch

    from harness.launch.launcher import Launcher
    from harness.training.ranks import Ranks

T = TypeVar("T")

RANK_SECONDS = 60.0  # that a rank waits for the others


def run_program(
    launcher: Launcher,
    module: str,
    folder: Path,
    ranks: int,
    device: str,
    report: tuple[type[T], FileFormat],
    *,
    seconds: float,
    threads: int = 1,
) -> T | str:
    """Start ranks that run `module`, and return what rank 0 reports, or why there is no report.

    `folder` is an argument that every program of a rank has; nothing is written there. `device` is
    as in a cluster profile, `report` the type of the report and its format, `seconds` how long the
    program may take, start of the ranks included.
    """
    command = launcher.command(module, TrialFolder(folder), ranks, [device])
    # Without `parent_variables`: the parent of a rank in a Slurm step is no process of ours.
    lines = output_lines(command, launcher.variables(threads, {}), seconds)
    for line in lines:
        if line.startswith("{"):
            try:
                return decode_text(report[0], line, "rank 0", report[1])
            except BadFile as error:
                return str(error)
    # If one rank fails, the others lose their connection to it and write lines of their own: the
    # first one counts.
    for line in lines:
        if line.startswith("rank "):
            return line
    return lines[-1] if lines else "no rank wrote anything"


def run_rank(examine: Callable[[Ranks, torch.device], Any]) -> None:
    """Run `examine` as one rank, and end this process.

    Rank 0 prints the dataclass that it returns.
    """
    from harness.training.interruption import before_torch

    before_torch()
    # Imported here, because the machine that submits needs no torch for its part.
    from harness.training.ranks import Ranks, choose_device

    ranks = Ranks.from_environment()
    try:
        report = examine(ranks, choose_device(sys.argv[2], ranks))  # type: ignore[arg-type]
    except Exception as error:
        message = f"{type(error).__name__}: {one_line(error)}"
        print(f"rank {ranks.rank} on {ranks.host}: {message}", flush=True)
        # Not sys.exit: threads of a broken process group may keep the interpreter from ending.
        end_process(1)
    if ranks.is_rank_0:
        print(json.dumps(asdict(report)), flush=True)
    end_process(0)  # at once: to clear all that torch has loaded takes half a second
