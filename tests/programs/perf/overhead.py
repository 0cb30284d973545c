"""What the harness's loop costs beside the same loop written bare, and beside what users would pick.

    python -m tests.programs.perf.overhead                            one rank
    python -m tests.programs.perf.overhead --threads 2 --workloads mlp
    torchrun --nproc-per-node 2 -m tests.programs.perf.overhead       DDP

The loops train in one process in turn, forth and back, in turns of some hundredths of a second
(`tests.programs.perf.turns`), so that drift of the machine affects all alike. Each block gives one ratio.
Harness and bare loop must compute the same losses to the bit, which proves that they did the same
work.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness.records.assignment import Assignment
from harness.records.environment import describe_hardware
from harness.training.entry import load_workload
from harness.training.ranks import Ranks, process_group
from tests.programs.perf.comparison import Comparison, compare, leave_rows, markdown_table
from tests.programs.perf.loops import (
    Accelerate,
    Bare,
    Floor,
    Harness,
    LightningFabric,
    Loop,
    Textbook,
)
from tests.programs.perf.race import PLANNED_STEPS
from tests.programs.perf.turns import PausedLoop, Times, take_turns
from tests.support.sweeps import load
from tests.support.tree import TOP

DATA = TOP.parent / "shared" / "data" / "mnist10k"
# Of each workload, in which each of its loops is at each position about equally often. A step of
# DistilBERT and of the decoder is long, so a block has few and tells less.
BLOCKS = {"mlp": 28, "cnn": 30, "distilbert": 48, "gpt": 48}
HARNESS, BARE, TEXTBOOK = "harness", "bare loop", "textbook loop"
HARNESS_BF16 = "harness in bf16"  # which is one word in a sweep, and not the same training
ACCELERATE, FABRIC = "accelerate", "Lightning Fabric"
FLOOR, WITHOUT_DDP = "its products and optimizer alone", "two ranks without DDP"
# The workloads of which libraries train a loop too; steps of the others are so long that none shows.
WITH_LIBRARIES = ("mlp", "cnn")
PACKAGES = {ACCELERATE: "accelerate", FABRIC: "lightning_fabric"}  # that loops need besides torch
# The ratios that the loop should reach, and the lower ends of their intervals.
BARE_GOAL = (0.98, 0.96)
TEXTBOOK_GOALS = {1: 1.5, 2: 1.6}  # of the MLP, by threads


def loop_makers(
    assignment: Assignment, folder: Path, ranks: Ranks
) -> dict[str, Callable[[], Loop]]:
    """Return what makes each loop that there is for this training, by its name."""
    trial = assignment.trial
    label = trial.cell.workload.label
    load_anew = partial(load_workload, assignment)
    makers: dict[str, Callable[[], Loop]] = {
        HARNESS: lambda: Harness(assignment, folder / trial.id, ranks),
        BARE: lambda: Bare(trial, load_anew(), ranks),
    }
    if ranks.world_size > 1:
        makers[WITHOUT_DDP] = lambda: Bare(trial, load_anew(), ranks, shares_gradients=False)
        return makers
    makers[TEXTBOOK] = lambda: Textbook(trial, load_anew())
    if label in WITH_LIBRARIES and _is_installed(ACCELERATE):
        makers[ACCELERATE] = lambda: Accelerate(trial, load_anew())
    if label in WITH_LIBRARIES and _is_installed(FABRIC):
        makers[FABRIC] = lambda: LightningFabric(trial, load_anew())
    if label == "mlp":
        makers[FLOOR] = lambda: Floor(trial, load_anew())
        in_bf16 = _in_bf16(assignment)
        makers[HARNESS_BF16] = lambda: Harness(in_bf16, folder / "bf16", ranks)
    return makers


def _in_bf16(assignment: Assignment) -> Assignment:
    """Return the same training under autocast to bf16."""
    trial = assignment.trial
    axes = replace(trial.cell.axes, precision="bf16")
    return replace(assignment, trial=replace(trial, cell=replace(trial.cell, axes=axes)))


def _is_installed(name: str) -> bool:
    """Return whether the package of a loop is there."""
    return importlib.util.find_spec(PACKAGES[name]) is not None


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
        "gpt": {"data": {"sequence": 32}},
    }
    strategy = "ddp" if ranks.world_size > 1 else "single"
    sweep = load(
        folder,
        workloads,
        matrix={"world_size": ranks.world_size, "strategy": strategy},
        length={"steps": PLANNED_STEPS},
        evaluate={"steps": PLANNED_STEPS},
    )
    assignments = []
    for trial in sweep.trials():
        assignments.append(Assignment(trial=trial, base_folder=str(folder), device="cpu"))
    return assignments


def check_same_losses(loops: Mapping[str, PausedLoop]) -> None:
    """Raise RuntimeError unless harness and bare loop computed the same losses.

    The harness has those of segments that have ended, so both train on until one has.
    """
    harness, bare = loops[HARNESS], loops[BARE]
    while not harness.loop.losses:
        harness.train(1)
        bare.train(1)
    losses = harness.loop.losses
    if losses != bare.loop.losses[: len(losses)]:
        raise RuntimeError("harness and bare loop computed other losses")


def measure(assignment: Assignment, folder: Path, ranks: Ranks, blocks: int) -> list[Comparison]:
    """Return the rows of a workload, of the harness beside each other loop."""

    def make_loops(block: int) -> dict[str, Callable[[], Loop]]:
        return loop_makers(assignment, folder / str(block), ranks)

    times = take_turns(make_loops, blocks, check_same_losses)
    rows = []
    for name in times.wall:
        if name not in (HARNESS, HARNESS_BF16):
            rows.append(_compare_with(name, assignment, ranks, times))
    if HARNESS_BF16 in times.wall:
        rows.append(_compare_with(TEXTBOOK, assignment, ranks, times, ours=HARNESS_BF16))
    return rows


def _compare_with(
    name: str, assignment: Assignment, ranks: Ranks, times: Times, ours: str = HARNESS
) -> Comparison:
    """Return the row of the harness, or of another loop of its own, beside another loop."""
    cell = assignment.trial.cell
    label, threads = cell.workload.label, torch.get_num_threads()
    if ours == HARNESS_BF16:
        label += " in bf16"
    what = f"{label}, {threads} thread{'s' if threads > 1 else ''}"
    if ranks.world_size > 1:
        what = f"{label}, {ranks.world_size} ranks of DDP"
    goal = goal_low = None
    if name == BARE and ranks.world_size == 1 and threads == 1:
        goal, goal_low = BARE_GOAL
    if name == TEXTBOOK and label == "mlp":
        goal = TEXTBOOK_GOALS.get(threads)
    return compare(
        what,
        name,
        times.wall[ours],
        times.wall[name],
        work=times.steps * cell.axes.batch_size,
        unit="samples/s",
        cpu=(times.cpu[ours], times.cpu[name]),
        goal=goal,
        goal_low=goal_low,
    )


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.overhead", description=__doc__
    )
    parser.add_argument(
        "--data", type=Path, default=DATA if DATA.is_dir() else None, help="a folder of IDX files"
    )
    parser.add_argument(
        "--blocks", type=int, help="of all loops in turn (default 28 to 48, by the workload)"
    )
    parser.add_argument("--threads", type=int, default=1, help="of each rank (default 1)")
    parser.add_argument(
        "--workloads", nargs="+", choices=BLOCKS, default=tuple(BLOCKS), help="(default: all)"
    )
    return parser.parse_args()


def main() -> None:
    """Print the table."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    ranks = Ranks.from_environment()
    needs_group = ranks.world_size > 1
    rows: list[Comparison] = []
    with (
        tempfile.TemporaryDirectory() as name,
        process_group(ranks, torch.device("cpu"), needed=needs_group, timeout=600),
    ):
        folder = Path(name)
        for assignment in make_assignments(folder, options.data, ranks):
            label = assignment.trial.cell.workload.label
            if label in options.workloads:
                rows += measure(assignment, folder, ranks, options.blocks or BLOCKS[label])
    if ranks.is_rank_0:
        leave_rows(rows)
        print(f"{markdown_table(rows)}\n{describe_conditions(options)}")


def describe_conditions(options: argparse.Namespace) -> str:
    """Return what the figures depend on, for those who read them later."""
    images = options.data.name if options.data else "digits"
    lines = [
        "Ratios are geometric means over n blocks, values are medians."
        f" Images of {images}. torch {torch.__version__} on {os.cpu_count()} cores of"
        f" {describe_hardware().cpu}, load {os.getloadavg()[0]:.1f}."
    ]
    for name in PACKAGES:
        if not _is_installed(name):
            lines.append(
                f"{name} is not installed, so its loop is left out; make bench installs it."
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
