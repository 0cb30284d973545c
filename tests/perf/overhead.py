"""What the harness costs beside the same loop written bare: `python -m tests.perf.overhead`, or under torchrun for DDP.

The loops train in one process in turn, in blocks of at least half a second, forth and back (ABC CBA), so that drift of
the machine falls on all alike. Each round gives one ratio. Harness and bare loop must compute the same losses to the
bit, so that it is known that they did the same work.
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
from tests.perf.loops import Bare, Harness, Loop, Textbook, own_random
from tests.support.sweeps import load
from tests.support.tree import TOP

DATA = TOP.parent / "shared" / "data" / "mnist10k"
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
BLOCK = 0.6  # seconds that the fastest loop should train at a time
PLANNED = 20_000  # steps that the schedules of learning rates are made for


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Of samples/s, with a 95% interval by BCa bootstrap over the rounds."""

    mean: float  # geometric
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def ratio(own: Sequence[float], other: Sequence[float]) -> Ratio:
    """How many times as fast as the other we are, from the seconds of both for the same work, round by round."""
    logs = np.log(other) - np.log(own)
    found = stats.bootstrap((logs,), np.mean, rng=np.random.default_rng(0)).confidence_interval
    mean, low, high = (math.exp(value) for value in (logs.mean(), found.low, found.high))
    return Ratio(mean=mean, low=low, high=high)


class Contest:
    """Loops that train in turn, each with random numbers of its own."""

    def __init__(
        self,
        makers: Mapping[str, Callable[[], Loop]],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.clock = clock
        self.random: dict[str, list[torch.Tensor]] = {name: [] for name in makers}
        self.seconds: dict[str, list[float]] = {name: [] for name in makers}
        self.loops: dict[str, Loop] = {}
        for name, make in makers.items():
            with own_random(self.random[name]):
                self.loops[name] = make()

    def run(self, blocks: int) -> int:
        """Fills `seconds`; returns the steps of a block."""
        for name in self.loops:
            self.train(name, 5)
        fastest = min(self.train(name, 20) for name in self.loops)
        steps: int = broadcast_from_rank_0(math.ceil(BLOCK * 20 / fastest))
        for number in range(blocks):
            for name in list(self.loops)[:: 1 if number % 2 == 0 else -1]:
                self.seconds[name].append(self.train(name, steps))
        return steps

    def train(self, name: str, steps: int) -> float:
        """The seconds that it took, all ranks together."""
        with own_random(self.random[name]):
            _wait()
            began = self.clock()
            self.loops[name].train(steps)
            _wait()
            return self.clock() - began


def _wait() -> None:
    if dist.is_initialized():
        dist.barrier()


def run_paired(assignment: Assignment, folder: Path, ranks: Ranks, clock: str = "wall") -> Contest:
    """The harness, the bare loop and, for one rank alone, the textbook's."""
    trial = assignment.trial
    makers: dict[str, Callable[[], Loop]] = {
        "harness": lambda: Harness(assignment, folder / trial.id, ranks),
        "bare": lambda: Bare(trial, load_workload(assignment), ranks),
    }
    if ranks.world_size == 1:
        makers["textbook"] = lambda: Textbook(trial, load_workload(assignment))
    return Contest(makers, CLOCKS[clock])


def assignments(folder: Path, data: Path | None, ranks: Ranks) -> list[Assignment]:
    """One trial of each workload; images from `data`, or the embedded digits."""
    images = {"source": "idx", "path": str(data)} if data else {"source": "digits"}
    entries: dict[str, Any] = {
        "mlp": {"data": images},
        "cnn": {"data": images},
        "distilbert": {
            "data": {"source": "tickets"},
            "options": {"sequence": 32, "padding": "fixed"},
        },
    }
    axes = {"world_size": ranks.world_size, "strategy": "ddp" if ranks.world_size > 1 else "single"}
    sweep = load(folder, entries, axes=axes, length={"steps": PLANNED}, evaluate={"steps": PLANNED})
    return [
        Assignment(trial=trial, base_folder=str(folder), device="cpu") for trial in sweep.trials()
    ]


def measure(
    assignment: Assignment, folder: Path, ranks: Ranks, blocks: int, clock: str
) -> list[str]:
    """A row of the table; raises RuntimeError if harness and bare loop did not do the same."""
    race = run_paired(assignment, folder, ranks, clock)
    steps = race.run(blocks)
    if list(race.loops["harness"].losses) != list(race.loops["bare"].losses):
        raise RuntimeError(
            f"{assignment.trial.cell.workload.label}: the harness and the bare loop computed other losses"
        )
    seconds = race.seconds
    samples = steps * assignment.trial.cell.axes.batch_size
    other = seconds.get("textbook")
    return [
        f"{assignment.trial.cell.workload.label} ×{ranks.world_size}",
        str(steps),
        f"{samples / float(np.median(seconds['harness'])):,.0f}",
        str(ratio(seconds["harness"], seconds["bare"])),
        str(ratio(seconds["harness"], other)) if other else "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.perf.overhead", description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=DATA if DATA.is_dir() else None, help="a folder of IDX files"
    )
    parser.add_argument(
        "--blocks", type=int, default=20, help="of each loop for each workload (default 20)"
    )
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu where others use the machine (default wall)",
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    ranks = Ranks.from_environment()
    table = Table(
        "workload", "steps", "samples/s", "harness : bare", "harness : textbook", box=None
    )
    with (
        tempfile.TemporaryDirectory() as name,
        process_group(ranks, torch.device("cpu"), needed=ranks.world_size > 1, timeout=600),
    ):
        for assignment in assignments(Path(name), given.data, ranks):
            table.add_row(*measure(assignment, Path(name), ranks, given.blocks, given.clock))
            gc.collect()
    if ranks.is_rank_0:
        console = Console(soft_wrap=True)
        console.print(table)
        console.print(_conditions(given.data, given.blocks, given.clock), highlight=False)


def _conditions(data: Path | None, blocks: int, clock: str) -> str:
    images, cpu, load = (
        data.name if data else "digits",
        describe_hardware().cpu,
        os.getloadavg()[0],
    )
    return (
        f"{blocks} blocks of so many steps for each loop, one thread a rank; samples/s: the harness's median;\n"
        f"ratios of samples/s ({clock} time) are geometric means with 95% intervals over the paired blocks.\n"
        f"Images of {images}. torch {torch.__version__} on {os.cpu_count()} cores of {cpu}, load {load:.1f}."
    )


if __name__ == "__main__":
    main()
