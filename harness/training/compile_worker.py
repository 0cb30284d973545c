"""The task `compile` of a worker: compiles a cell's code alone, as rank 0 of ranks that do not exist.

The process group is torch's `fake` one of the cell's size, in which collectives do nothing. DDP waits
for what its collectives return, and has a group of this rank alone: its graphs are the same at any size.
All that `harness.training.compiled_code` wants of the process is what it has compiled after one step.
"""

from __future__ import annotations

from dataclasses import replace

import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from harness.core.paths import TrialFolder
from harness.records.record import RankResult
from harness.training import compile_cache
from harness.training.build import build_trial
from harness.training.compiled_code import compiled_by, save
from harness.training.entry import load_workload, prepare_device, prepare_rank, with_batch_size_of
from harness.training.mesh import ParallelMesh
from harness.training.ranks import Ranks
from harness.training.state import TrainingState
from harness.training.strategies import strategy_class
from harness.training.train import Trainer


def compile_cell(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Take the trial's first step, and leave what was compiled in the folder."""
    assignment = prepare_rank(folder)
    axes = assignment.trial.cell.axes
    device = prepare_device(assignment, ranks)
    strategy = strategy_class(axes.strategy)
    if strategy.shards_parameters:
        dist.init_process_group("fake", rank=0, world_size=axes.world_size)
    elif strategy.needs_process_group:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    mesh = ParallelMesh.from_axes(axes, replace(ranks, world_size=axes.world_size), device)
    workload = load_workload(assignment)
    assignment = with_batch_size_of(workload, assignment)
    parts = build_trial(assignment, workload, folder, mesh, state)
    Trainer(parts, state).run(until=1)
    save(compiled_by(folder), compile_cache.shared_folder())
    return replace(entered, compiled=state.compiled)
