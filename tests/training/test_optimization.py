"""A workload's optimizer and schedule, as the axes change them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CyclicLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    SequentialLR,
)

from harness.core.errors import NotApplied
from harness.sweep.axes import Axes
from harness.training.model import make_optimizer, make_schedule
from tests.support.line import LineFit, Options
from workloads.settings import Settings


class Recipe(LineFit):
    """Two groups of parameters, one of them decayed."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        weight, bias, *others = model.parameters()
        groups: list[dict[str, Any]] = [
            {"params": [weight, *others], "weight_decay": 0.1},
            {"params": [bias], "lr": 5e-3},
        ]
        return torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.0)


def build_optimizer(**axes: Any) -> torch.optim.Optimizer:
    """Return the optimizer that the axes make of the recipe."""
    workload = Recipe(Options(), Settings())
    return make_optimizer(workload, workload.build_model(), Axes(**{"batch_size": 32, **axes}))


def learning_rates(optimizer: torch.optim.Optimizer) -> list[float]:
    """Return the learning rate of each group of parameters."""
    return [group["lr"] for group in optimizer.param_groups]


@pytest.mark.parametrize(
    ("optimizer_impl", "flags"),
    [("for-loop", (False, False)), ("foreach", (True, False)), ("fused", (False, True))],
)
def test_an_implementation_is_the_one_that_steps(
    optimizer_impl: str, flags: tuple[bool, bool]
) -> None:
    for group in build_optimizer(optimizer_impl=optimizer_impl).param_groups:
        assert (group["foreach"], group["fused"]) == flags


def test_an_implementation_that_an_optimizer_lacks_is_refused() -> None:
    class WithRprop(LineFit):
        def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.Rprop(model.parameters())

    workload = WithRprop(Options(), Settings())
    axes = Axes(batch_size=32, optimizer_impl="fused")
    with pytest.raises(NotApplied, match="optimizer_impl: Rprop has no fused"):
        make_optimizer(workload, workload.build_model(), axes)


def test_learning_rate_and_linear_scaling() -> None:
    assert learning_rates(build_optimizer(lr=0.3)) == [0.3, 0.3]
    assert learning_rates(build_optimizer(lr_scaling="linear", batch_size=128)) == [4e-2, 2e-2]
    assert learning_rates(build_optimizer(lr_scaling="linear")) == [1e-2, 5e-3]


def warm_up(optimizer: Optimizer, then: LRScheduler) -> LRScheduler:
    """Return a schedule that rises over three steps, and goes on as another one."""
    return SequentialLR(optimizer, [LinearLR(optimizer, 0.1, total_iters=3), then], [3])


Schedule = Callable[[Optimizer], LRScheduler | None]
# With the optimizer's rates, whichever they are.
RELATIVE: list[Schedule] = [
    lambda optimizer: None,
    lambda optimizer: LambdaLR(optimizer, lambda step: min(1.0, step / 5)),
    lambda optimizer: LambdaLR(optimizer, [lambda step: 1.0, lambda step: 0.0]),
    lambda optimizer: OneCycleLR(optimizer, learning_rates(optimizer), 10),
    lambda optimizer: OneCycleLR(optimizer, [10 * rate for rate in learning_rates(optimizer)], 10),
    lambda optimizer: CyclicLR(optimizer, 1e-4, learning_rates(optimizer), 4),
    lambda optimizer: warm_up(optimizer, CosineAnnealingLR(optimizer, 7)),
]
# With numbers for rates.
ABSOLUTE: list[Schedule] = [
    lambda optimizer: OneCycleLR(optimizer, 0.5, 10),
    lambda optimizer: OneCycleLR(optimizer, [learning_rates(optimizer)[0], 0.5], 10),
    lambda optimizer: CyclicLR(optimizer, 1e-4, 0.5, 4),
    lambda optimizer: warm_up(optimizer, OneCycleLR(optimizer, 0.5, 10)),
]
# Whether axes change the rate.
CHANGING: list[dict[str, Any]] = [{"lr": 0.3}, {"lr_scaling": "linear", "batch_size": 64}]
UNCHANGING: list[dict[str, Any]] = [{}, {"lr_scaling": "linear"}]


def scheduled(schedule: Schedule, **axes: Any) -> Optimizer:
    """Return the optimizer that the axes make of a recipe with this schedule, its first rates set."""

    class Scheduled(Recipe):
        def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler | None:
            return schedule(optimizer)

    workload = Scheduled(Options(), Settings())
    every_axis = Axes(**{"batch_size": 32, **axes})
    optimizer = make_optimizer(workload, workload.build_model(), every_axis)
    make_schedule(workload, optimizer, every_axis, 10)
    return optimizer


@pytest.mark.parametrize("schedule", ABSOLUTE)
def test_a_schedule_with_rates_of_its_own_is_refused_where_axes_change_them(
    schedule: Schedule,
) -> None:
    for axes in CHANGING:
        with pytest.raises(NotApplied, match="had no effect: Scheduled"):
            scheduled(schedule, **axes)
    for axes in UNCHANGING:
        scheduled(schedule, **axes)


@pytest.mark.parametrize("schedule", RELATIVE)
def test_a_schedule_of_the_optimizers_rates_is_what_the_workload_makes_of_them(
    schedule: Schedule,
) -> None:
    for axes in CHANGING:
        optimizer = scheduled(schedule, **axes)
        expected = build_optimizer(**axes)
        schedule(expected)
        for group, expected_group in zip(
            optimizer.param_groups, expected.param_groups, strict=True
        ):
            del group["params"], expected_group["params"]
            assert group == expected_group, "simulating it leaves nothing behind"


def cosine_rates(lr: float | torch.Tensor, **axes: Any) -> list[float]:
    """Return the rates of ten steps of a recipe with this rate and a cosine schedule."""

    class OneRate(Recipe):
        def optimizer(self, model: nn.Module) -> Optimizer:
            return torch.optim.Adam(model.parameters(), lr=lr, foreach=False)

        def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler:
            return CosineAnnealingLR(optimizer, steps)

    workload = OneRate(Options(), Settings())
    every_axis = Axes(**{"batch_size": 32, **axes})
    optimizer = make_optimizer(workload, workload.build_model(), every_axis)
    (group,) = optimizer.param_groups
    schedule = make_schedule(workload, optimizer, every_axis, 10)
    assert schedule is not None
    rates = []
    for _ in range(10):
        rates.append(float(group["lr"]))
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize("axes", [{}, CHANGING[1]])
def test_a_rate_that_is_a_tensor_has_the_schedule_of_a_float(axes: dict[str, Any]) -> None:
    assert cosine_rates(torch.tensor(0.1), **axes) == pytest.approx(cosine_rates(0.1, **axes))
