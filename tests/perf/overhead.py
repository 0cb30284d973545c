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
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from scipy import stats

from harness.records.assignment import Assignment
from harness.records.environment import describe_hardware
from harness.training.ranks import Ranks, broadcast_from_rank_0, process_group
from harness.training.worker import load_workload
from tests.perf.loops import Bare, Harness, Loop, Textbook, isolated_random
from tests.support.sweeps import load
from tests.support.tree import TOP

DATA = TOP.parent / "shared" / "data" / "mnist10k"
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
WINDOW_SECONDS = 0.6  # that the fastest loop should train at a time
PROBED_STEPS = 20  # in which the length of a window is estimated
PLANNED_STEPS = 200_000  # for which learning-rate schedules are made; more than are ever trained


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A ratio of samples/s, with a 95% interval by BCa bootstrap over the rounds."""

    mean: float  # geometric
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def estimate_ratio(seconds: Sequence[float], other_seconds: Sequence[float]) -> Ratio:
    """Return how many times as fast as another loop a loop is.

    Both arguments have the seconds of each round for the same work.
    """
    logs = np.log(other_seconds) - np.log(seconds)
    bootstrap = stats.bootstrap((logs,), np.mean, rng=np.random.default_rng(0))
    interval = bootstrap.confidence_interval
    return Ratio(
        mean=math.exp(logs.mean()), low=math.exp(interval.low), high=math.exp(interval.high)
    )


class Race:
    """Loops that train in turn, each with random numbers of its own."""

    def __init__(
        self,
        makers: Mapping[str, Callable[[], Loop]],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.clock = clock
        self.loops: dict[str, Loop] = {}
        self.seconds: dict[str, list[float]] = {}  # of each window, by the name of the loop
        self.random: dict[str, list[torch.Tensor]] = {}
        for name, make in makers.items():
            self.seconds[name] = []
            self.random[name] = []
            with isolated_random(self.random[name]):
                self.loops[name] = make()

    def run(self, windows: int) -> int:
        """Train so many windows of each loop, and return the steps of a window."""
        for name in self.loops:
            self.train(name, 5)  # warm-up
        fastest = min(self.train(name, PROBED_STEPS) for name in self.loops)
        steps: int = broadcast_from_rank_0(math.ceil(WINDOW_SECONDS * PROBED_STEPS / fastest))
        names = list(self.loops)
        for _ in range(windows):
            for name in names:
                self.seconds[name].append(self.train(name, steps))
            names.reverse()
        return steps

    def train(self, name: str, steps: int) -> float:
        """Train a loop, and return the seconds until all ranks were done."""
        with isolated_random(self.random[name]):
            _wait_for_all_ranks()
            start = self.clock()
            self.loops[name].train(steps)
            _wait_for_all_ranks()
            return self.clock() - start


def _wait_for_all_ranks() -> None:
    if dist.is_initialized():
        dist.barrier()


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
