"""A tree of sums is the same whoever computes it, and other orders are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.sweep.axes import Axes, find_conflict
from harness.training.step import Gradients, sum_tree
from harness.training.strategies import sum_rows
from tests.support.frozen import AlternatingFit
from tests.support.line import Options
from tests.support.training import make_assignment, make_trainer
from workloads.settings import Settings

LEAVES = 8


def random_leaves(seed: int) -> Tensor:
    """Return gradients of many magnitudes, shape (LEAVES, 1000)."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-6, 7, (LEAVES, 1000), generator=generator)
    return torch.randn(LEAVES, 1000, generator=generator) * 2.0**exponents


def sum_at_ranks(leaves: Tensor, world_size: int) -> Tensor:
    """Return what `world_size` ranks compute: the rows of a micro-step, then the micro-steps."""
    micro_steps = torch.split(leaves, world_size)
    # Copies, as the tree adds in place.
    sums: list[Gradients] = [[sum_rows(micro_step).clone()] for micro_step in micro_steps]
    (total,) = sum_tree(iter(sums), len(micro_steps))
    assert total is not None
    return total


@given(seed=st.integers(0, 2**32), world_size=st.sampled_from([1, 2, 4, 8]))
def test_any_number_of_ranks_computes_the_same_bits(seed: int, world_size: int) -> None:
    leaves = random_leaves(seed)
    assert torch.equal(sum_at_ranks(leaves, world_size), sum_rows(leaves))


def test_another_order_computes_other_bits() -> None:
    leaves = random_leaves(0)
    in_sequence = leaves[0].clone()
    for leaf in leaves[1:]:
        in_sequence += leaf
    assert not torch.equal(in_sequence, sum_rows(leaves))
    torch.testing.assert_close(in_sequence, sum_rows(leaves))


def test_a_parameter_without_a_gradient_in_some_micro_steps_gets_the_sum_of_the_others() -> None:
    gradients = (None, torch.ones(2), torch.ones(2), None)
    used, unused = sum_tree(iter([gradient, None] for gradient in gradients), len(gradients))
    assert used is not None
    assert used.tolist() == [2, 2]
    assert unused is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "with 1 leaves"),
        ({"grad_accum_steps": 3}, "with 3 leaves"),
        ({"grad_accum_steps": 2, "optimizer_impl": "fused"}, "optimizer_impl fused"),
        (
            {"strategy": "fsdp2", "world_size": 2, "max_grad_norm": 1.0},
            "max_grad_norm under strategy fsdp2",
        ),
    ],
)
def test_settings_that_would_break_the_promise_are_refused(
    settings: dict[str, object], reason: str
) -> None:
    conflict = find_conflict(Axes(batch_size=12, reduction="tree", **settings))  # type: ignore[arg-type]
    assert conflict is not None
    assert reason in conflict


def test_a_layer_that_is_thawed_gets_the_mean_of_the_micro_batches(tmp_path: Path) -> None:
    losses = []
    for reduction in ("backend", "tree"):
        assignment = make_assignment(steps=12, grad_accum_steps=4, reduction=reduction)
        workload = AlternatingFit(Options(momentum=0.0), Settings())
        trainer = make_trainer(assignment, workload, tmp_path / reduction)
        trainer.run()
        losses.append(trainer.state.series["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
