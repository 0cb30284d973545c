"""A batch's gradient is the weighted mean of its micro-batches', however many there are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.training.step import weighted
from harness.training.train import Trainer
from tests.support.tokens import Options, Unweighted, Weighted
from tests.support.training import make_assignment, make_trainer
from workloads import Settings

TREE = {"reduction": "tree"}


def trainer_of(
    folder: Path, workload_class: type[Unweighted], axes: dict[str, Any], **options: Any
) -> Trainer:
    """Return a trainer of sentences in fp64."""
    workload = workload_class(Options(**options), Settings())
    assignment = make_assignment(steps=6, precision="fp64", **axes)
    return make_trainer(assignment, workload, folder)


def first_gradients(trainer: Trainer) -> Tensor:
    """Return the gradients of the first batch, flattened."""
    parts = trainer.parts
    parts.order.next_step = 0
    _, batch = next(iter(parts.loader))
    parts.train_step.compute_gradients(batch)
    gradients = []
    for parameter in parts.model.parameters():
        assert parameter.grad is not None
        gradients.append(parameter.grad.flatten())
    return torch.cat(gradients)


@pytest.mark.parametrize("axes", [{}, TREE], ids=str)
@pytest.mark.parametrize("options", [{}, {"weight": "fraction"}, {"empty": True}], ids=str)
def test_four_micro_batches_have_the_gradients_of_one(
    tmp_path: Path, axes: dict[str, Any], options: dict[str, Any]
) -> None:
    whole = trainer_of(tmp_path, Weighted, {}, **options)
    cut = trainer_of(tmp_path, Weighted, {"grad_accum_steps": 4, **axes}, **options)
    torch.testing.assert_close(first_gradients(cut), first_gradients(whole), rtol=1e-10, atol=1e-14)


def test_the_loss_of_a_step_is_the_weighted_mean(tmp_path: Path) -> None:
    losses = []
    for axes in ({}, {"grad_accum_steps": 4}, {"grad_accum_steps": 8, **TREE}):
        trainer = trainer_of(tmp_path, Weighted, axes)
        trainer.run()
        losses.append(trainer.state.series["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    assert losses[2] == pytest.approx(losses[0], rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_without_targets_counts_nothing(dtype: torch.dtype) -> None:
    loss = torch.tensor(math.nan, dtype=dtype)
    product = weighted(loss, torch.tensor(0.0, dtype=torch.float64))
    assert (product.item(), product.dtype) == (0.0, dtype)
    assert weighted(loss, torch.tensor(2.0, dtype=torch.float64)).isnan()
