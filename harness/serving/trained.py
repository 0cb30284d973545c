"""Rebuilds the model of a recorded trial with the parameters of its checkpoint, in one process."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from harness.spec.cell import Cell
from harness.training.best import load_best
from harness.training.model import build_model
from harness.training.precision import apply_matmul_precision
from workloads.base import Workload


def load_trained(
    workload: Workload, cell: Cell, checkpoint: Path, device: torch.device
) -> nn.Module:
    """Return the model of a cell in evaluation mode, with the parameters of a checkpoint.

    Buffers are those of rank 0, and the workload gets its state back. The workload's `splits`
    must have been called. Raises BadCheckpoint for files that can't be read.
    """
    apply_matmul_precision(cell.axes, device)
    model = build_model(workload, cell.axes, device)
    state = load_best(checkpoint, model)
    if state:
        workload.load_state_dict(state)
    return model.eval()
