"""Trials in this process: one rank, on the CPU unless another device is named, without a launcher."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from harness.core.paths import TrialFolder
from harness.records.assignment import Assignment
from harness.sweep.cell import Length, Trial
from harness.training.build import TrialParts
from harness.training.digests import digest_model
from harness.training.ranks import Ranks
from harness.training.state import TrainingState
from harness.training.train import Hooks, Trainer
from workloads.base import Workload

CPU = torch.device("cpu")
SINGLE_RANK = Ranks(rank=0, local_rank=0, world_size=1)


class NoEvaluation(Hooks):
    """Trains and never evaluates."""

    evaluates = False


def make_assignment(*, steps: int, **axes: Any) -> Assignment:
    """Return a trial of `steps` steps with an evaluation at its end, in batches of 32."""
    # Here, as it loads PyYAML, which a machine that only trains may not have.
    from tests.factories import make_cell

    cell = make_cell(steps=steps, **{"batch_size": 32, **axes})
    cell = replace(cell, evaluate=Length(steps=steps), warmup=1)
    return Assignment(trial=Trial(cell=cell, seed=0), base_folder="")


def make_trainer(
    assignment: Assignment,
    workload: Workload,
    folder: Path,
    *,
    ranks: Ranks = SINGLE_RANK,
    hooks: Hooks | None = None,
    device: torch.device = CPU,
) -> Trainer:
    """Build a trial of `workload`, whatever the assignment names, ready to be run."""
    state = TrainingState()
    mesh = replace(ranks, device=device)
    parts = TrialParts(assignment, workload, TrialFolder(folder), mesh, state)
    return Trainer(parts, state, hooks or Hooks())


def digest_of(trainer: Trainer) -> str:
    """Return the digest of the model that a trainer has trained."""
    return digest_model(trainer.parts.model, trainer.parts.workload)
