"""JAX, which the speed tables have beside torch, trains the same model with the same batches.

Here it is the CNN, whose layers and schedule include those of the MLP. The tables themselves compare
the losses of both whenever they are made (`tests.programs.perf.tables`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.records.assignment import Assignment
from tests.programs.perf.jax_loop import JaxLoop, largest_difference
from tests.programs.perf.loops import Harness
from tests.support.sweeps import load
from tests.support.training import SINGLE_RANK

STEPS = 14  # more than an epoch of the digits
# Of a loss, as a share: the harness keeps losses in fp32, of which a half of the last bit is 6e-8.
# Trained in fp32, the difference would grow to percents.
TOLERANCE = 1e-7


@pytest.mark.nightly
def test_jax_computes_the_losses_of_torch(tmp_path: Path) -> None:
    entry = {"data": {"source": "digits"}, "options": {"dropout": 0.0, "width": 4}}
    length = {"steps": STEPS}
    axes = {"precision": "fp64", "batch_size": 128}
    sweep = load(tmp_path, {"cnn": entry}, length=length, evaluate=length, seeds=[3], matrix=axes)
    (trial,) = sweep.trials()
    assignment = Assignment(trial=trial, base_folder=str(tmp_path), device="cpu")
    torch_loop = Harness(assignment, tmp_path / "torch", SINGLE_RANK)
    torch_loop.train(STEPS)
    with JaxLoop(assignment, tmp_path / "jax") as jax_loop:
        jax_loop.train(STEPS // 2)
        jax_loop.train(STEPS - STEPS // 2)
        losses = jax_loop.losses
    assert len(losses) == STEPS
    assert torch_loop.losses[-1] < 0.9 * torch_loop.losses[0]
    assert largest_difference(losses, torch_loop.losses) < TOLERANCE
