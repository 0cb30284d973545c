"""Races the harness's loop against the bare one, or the textbook's, in turn and in one process."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import torch

from harness.records.assignment import Assignment
from harness.sweep.cell import Trial
from harness.training.entry import load_workload
from harness.training.ranks import Ranks, choose_device
from tests.programs.gpu.arguments import leave, parser
from tests.programs.gpu.train import make_cell
from tests.programs.perf.comparison import format_interval, ratio_of
from tests.programs.perf.loops import Bare, Harness, Loop, Textbook
from tests.programs.perf.race import PLANNED_STEPS, Race

BATCH_SIZE = 64
# A GPU may add up in another order in each run, which training amplifies from step to step. In the first
# steps, more than this is another training.
TOLERANCE = 1e-2
COMPARED_STEPS = 100


def main() -> None:
    """Leave the ratio of samples/s with its interval; raise RuntimeError if losses differ."""
    arguments = parser()
    arguments.add_argument("--workload", choices=("mlp", "cnn"), required=True)
    arguments.add_argument("--against", choices=("bare", "textbook"), required=True)
    arguments.add_argument("--axes", type=json.loads, default={})
    arguments.add_argument("--windows", type=int, required=True)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    ranks = Ranks(rank=0, local_rank=0, world_size=1)
    device = choose_device(options.device, ranks)
    cell = make_cell(options.workload, PLANNED_STEPS, {"batch_size": BATCH_SIZE, **options.axes})
    trial = Trial(cell=cell, seed=0)
    folder = options.folder / "trial0"
    folder.mkdir(exist_ok=True)
    assignment = Assignment(trial=trial, base_folder=str(folder), device=options.device)
    others: dict[str, Callable[[], Loop]] = {
        "bare": lambda: Bare(trial, load_workload(assignment), ranks, device),
        "textbook": lambda: Textbook(trial, load_workload(assignment), device),
    }
    race = Race(
        {
            "harness": lambda: Harness(assignment, folder, ranks, device),
            options.against: others[options.against],
        }
    )
    steps = race.run(options.windows)
    if options.against == "bare":
        check_same_losses(race.loops["harness"].losses, race.loops["bare"].losses)
    seconds = race.seconds["harness"]
    ratio = ratio_of(seconds, race.seconds[options.against])
    figures = {
        f"harness : {options.against}": ratio.mean,
        "with its 95% interval": format_interval(ratio),
        "samples/s": steps * BATCH_SIZE / float(np.median(seconds)),
    }
    leave(options.folder, figures)


def check_same_losses(losses: list[float], bare_losses: list[float]) -> None:
    """Raise RuntimeError if two loops that should train the same did not."""
    if len(losses) != len(bare_losses):
        raise RuntimeError(f"found {len(losses)} steps, of the bare loop {len(bare_losses)}")
    pairs = zip(losses[:COMPARED_STEPS], bare_losses[:COMPARED_STEPS], strict=True)
    for step, (loss, bare_loss) in enumerate(pairs):
        if not math.isclose(loss, bare_loss, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            raise RuntimeError(f"step {step}: loss {loss}, of the bare loop {bare_loss}")


if __name__ == "__main__":
    main()
