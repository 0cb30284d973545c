"""What the harness costs beside the same loop written bare.

    python -m tests.perf.overhead                            one rank
    torchrun --nproc-per-node 2 -m tests.perf.overhead       DDP

The loops train in one process in turn, in windows of at least half a second, forth and back (ABC
CBA), so that drift of the machine affects all alike. Each round gives one ratio. Harness and bare
loop must compute the same losses to the bit, which proves that they did the same work.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from harness.records.assignment import Assignment
from harness.records.environment import describe_hardware
from harness.training.ranks import Ranks, process_group
from harness.training.worker import load_workload
from tests.perf.loops import Bare, Harness, Loop, Textbook
from tests.perf.race import CLOCKS, PLANNED_STEPS, Race, estimate_ratio
from tests.support.sweeps import load
from tests.support.tree import TOP

DATA = TOP.parent / "shared" / "data" / "mnist10k"


def make_race(assignment: Assignment, folder: Path, ranks: Ranks, clock: str = "wall") -> Race:
    """Return a race of the harness, the bare loop and, for a single rank, the textbook's loop."""
    trial = assignment.trial
    makers: dict[str, Callable[[], Loop]] = {
        "harness": lambda: Harness(assignment, folder / trial.id, ranks),
        "bare": lambda: Bare(trial, load_workload(assignment), ranks),
    }
    if ranks.world_size == 1:
        makers["textbook"] = lambda: Textbook(trial, load_workload(assignment))
    return Race(makers, CLOCKS[clock])


def make_assignments(folder: Path, data: Path | None, ranks: Ranks) -> list[Assignment]:
    """Return one trial of each workload.

    Images are those in the folder `data`, or the embedded digits.
    """
    images = {"source": "idx", "path": str(data)} if data else {"source": "digits"}
    workloads: dict[str, Any] = {
        "mlp": {"data": images},
        "cnn": {"data": images},
        "distilbert": {
            "data": {"source": "tickets"},
            "options": {"sequence": 32, "padding": "fixed"},
        },
    }
    strategy = "ddp" if ranks.world_size > 1 else "single"
    sweep = load(
        folder,
        workloads,
        axes={"world_size": ranks.world_size, "strategy": strategy},
        length={"steps": PLANNED_STEPS},
        evaluate={"steps": PLANNED_STEPS},
    )
    assignments = []
    for trial in sweep.trials():
        assignments.append(Assignment(trial=trial, base_folder=str(folder), device="cpu"))
    return assignments


def measure(
    assignment: Assignment, folder: Path, ranks: Ranks, windows: int, clock: str
) -> list[str]:
    """Return a row of the table.

    Raises RuntimeError if harness and bare loop did not compute the same losses.
    """
    cell = assignment.trial.cell
    race = make_race(assignment, folder, ranks, clock)
    steps = race.run(windows)
    if list(race.loops["harness"].losses) != list(race.loops["bare"].losses):
        raise RuntimeError(f"{cell.workload.label}: harness and bare loop computed other losses")
    harness_seconds = race.seconds["harness"]
    samples = steps * cell.axes.batch_size
    textbook = ""
    if "textbook" in race.seconds:
        textbook = str(estimate_ratio(harness_seconds, race.seconds["textbook"]))
    return [
        f"{cell.workload.label} ×{ranks.world_size}",
        str(steps),
        f"{samples / float(np.median(harness_seconds)):,.0f}",
        str(estimate_ratio(harness_seconds, race.seconds["bare"])),
        textbook,
    ]


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="python -m tests.perf.overhead", description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=DATA if DATA.is_dir() else None, help="a folder of IDX files"
    )
    parser.add_argument(
        "--windows", type=int, default=20, help="of each loop for each workload (default 20)"
    )
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu where others use the machine (default wall)",
    )
    return parser.parse_args()


def main() -> None:
    """Print the table."""
    options = parse_options()
    torch.set_num_threads(1)
    ranks = Ranks.from_environment()
    needs_group = ranks.world_size > 1
    table = Table(
        "workload", "steps", "samples/s", "harness : bare", "harness : textbook", box=None
    )
    with (
        tempfile.TemporaryDirectory() as name,
        process_group(ranks, torch.device("cpu"), needed=needs_group, timeout=600),
    ):
        folder = Path(name)
        for assignment in make_assignments(folder, options.data, ranks):
            table.add_row(*measure(assignment, folder, ranks, options.windows, options.clock))
            gc.collect()
    if ranks.is_rank_0:
        console = Console(soft_wrap=True)
        console.print(table)
        console.print(describe_conditions(options), highlight=False)


def describe_conditions(options: argparse.Namespace) -> str:
    """Return what the figures depend on, for those who read them later."""
    images = options.data.name if options.data else "digits"
    cpu, load_average = describe_hardware().cpu, os.getloadavg()[0]
    return (
        f"{options.windows} windows of so many steps for each loop, one thread per rank;"
        f" samples/s: the harness's median;\n"
        f"ratios of samples/s ({options.clock} time) are geometric means"
        f" with 95% intervals over the paired windows.\n"
        f"Images of {images}. torch {torch.__version__} on {os.cpu_count()} cores of {cpu},"
        f" load {load_average:.1f}."
    )


if __name__ == "__main__":
    main()
