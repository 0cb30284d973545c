"""What the harness's loop costs beside the same loop written bare, and beside a textbook's.

    python -m tests.programs.perf.overhead ROWS BLOCKS WORKLOAD…                         one rank
    torchrun --nproc-per-node 2 -m tests.programs.perf.overhead ROWS BLOCKS WORKLOAD…    DDP

ROWS is the file for the table's rows. The loops train in one process in turn, forth and back, so that drift of
the machine affects all alike. Each block gives one ratio. Harness and bare loop must compute the same losses to
the bit, which proves that they did the same work.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness.records.assignment import Assignment
from harness.training.entry import load_workload
from harness.training.ranks import Ranks, process_group
from tests.programs.perf.comparison import compare
from tests.programs.perf.loops import Bare, Harness, Loop, Textbook
from tests.programs.perf.race import PLANNED_STEPS, run_blocks
from tests.programs.perf.results import Row, markdown
from tests.support.sweeps import load

# The folder of MNIST's IDX files if it is named, else the smaller digits that scikit-learn brings.
MNIST = os.environ.get("MNIST")
IMAGES = {"source": "idx", "path": MNIST} if MNIST else {"source": "digits"}
WORKLOADS: Sequence[str] = ("mlp", "cnn", "distilbert", "gpt")
BLOCKS = 24  # in which each loop is at each position equally often
HARNESS, BARE, TEXTBOOK = "harness", "bare loop", "textbook loop"
# The ratios that the loop should reach, and the lower end of an interval.
BARE_GOAL, BARE_LOW_GOAL = 0.98, 0.96
TEXTBOOK_GOAL = 1.5  # of the MLP


def make_assignments(
    folder: Path, workloads: Mapping[str, Any], steps: int = PLANNED_STEPS, **axes: Any
) -> list[Assignment]:
    """Return the trials of these workloads with these axes, which are evaluated at their end."""
    length = {"steps": steps}
    sweep = load(folder, workloads, matrix=axes, length=length, evaluate=length)
    assignments = []
    for trial in sweep.trials():
        assignments.append(Assignment(trial=trial, base_folder=str(folder), device="cpu"))
    return assignments


def bench_assignments(folder: Path, ranks: Ranks) -> list[Assignment]:
    """Return one trial of each of WORKLOADS."""
    texts = {"data": {"source": "tickets"}, "options": {"sequence": 32, "padding": "fixed"}}
    workloads = {
        "mlp": {"data": IMAGES},
        "cnn": {"data": IMAGES},
        "distilbert": texts,
        "gpt": {"data": {"sequence": 32}},
    }
    strategy = "ddp" if ranks.world_size > 1 else "single"
    return make_assignments(folder, workloads, world_size=ranks.world_size, strategy=strategy)


def loop_makers(
    assignment: Assignment, folder: Path, ranks: Ranks
) -> dict[str, Callable[[], Loop]]:
    """Return what makes each loop that there is for this training, by its name."""
    trial = assignment.trial
    load_anew = partial(load_workload, assignment)
    makers: dict[str, Callable[[], Loop]] = {
        HARNESS: lambda: Harness(assignment, folder / trial.id, ranks),
        BARE: lambda: Bare(trial, load_anew(), ranks),
    }
    if ranks.world_size == 1:
        makers[TEXTBOOK] = lambda: Textbook(trial, load_anew())
    return makers


def check_same_losses(loops: Mapping[str, Loop]) -> None:
    """Raise RuntimeError unless harness and bare loop computed the same losses."""
    if loops[HARNESS].losses != loops[BARE].losses:
        raise RuntimeError("harness and bare loop computed other losses")


def measure(assignment: Assignment, folder: Path, ranks: Ranks, blocks: int) -> list[Row]:
    """Return the rows of a workload, of the harness beside each other loop."""

    def make_loops(block: int) -> dict[str, Callable[[], Loop]]:
        return loop_makers(assignment, folder / str(block), ranks)

    steps, seconds = run_blocks(make_loops, blocks, check_same_losses)
    cell = assignment.trial.cell
    work = steps * cell.axes.batch_size
    label = cell.workload.label
    ours, bare = seconds[HARNESS], seconds[BARE]
    if ranks.world_size > 1:
        what = f"{label}, {ranks.world_size} ranks of DDP"
        return [compare(what, BARE, ours, bare, work=work)]
    textbook_goal = TEXTBOOK_GOAL if label == "mlp" else None
    return [
        compare(label, BARE, ours, bare, work=work, goal=BARE_GOAL, goal_low=BARE_LOW_GOAL),
        compare(label, TEXTBOOK, ours, seconds[TEXTBOOK], work=work, goal=textbook_goal),
    ]


def main() -> None:
    """Print the table, and leave its rows."""
    path, blocks, *labels = sys.argv[1:]
    torch.set_num_threads(1)
    ranks = Ranks.from_environment()
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory() as name,
        process_group(ranks, torch.device("cpu"), needed=ranks.world_size > 1, timeout=600),
    ):
        for assignment in bench_assignments(Path(name), ranks):
            if assignment.trial.cell.workload.label in labels:
                rows += measure(assignment, Path(name), ranks, int(blocks))
    if ranks.rank == 0:
        Path(path).write_text(json.dumps(rows), encoding="utf-8")
        print(markdown(rows), flush=True)


if __name__ == "__main__":
    main()
