"""Optimizer and learning rate: the workload's recipe, as the axes change it."""

from __future__ import annotations

import warnings
from copy import copy
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from harness.core.errors import NotApplied, one_line
from harness.sweep.axes import Axes
from workloads.base import Workload

SIMULATED_STEPS = 1000  # of a schedule at most, to see whether it depends on the optimizer's rates


def make_optimizer(workload: Workload, model: nn.Module, axes: Axes) -> Optimizer:
    """Return the workload's optimizer, with the implementation and the rates that the axes ask for.

    With lr_scaling=linear, k times the recipe's batch size means k times the learning rate (Goyal
    et al. 2017, arXiv:1706.02677). Raises NotApplied for an implementation that the optimizer
    doesn't have, and for a parameter outside the model, which no strategy or checkpoint has.
    """
    optimizer = workload.optimizer(model)
    of_model = set(model.parameters())
    is_fused = False
    for group in optimizer.param_groups:
        is_fused |= bool(group.get("fused"))
        if not of_model.issuperset(group["params"]):
            raise NotApplied(
                f"{type(workload).__name__}: found an optimizer with a parameter that is not the"
                " model's; needed: all that train in build_model(), so that ranks share their"
                " gradients and checkpoints have them"
            )
    implementation = axes.optimizer_impl
    if axes.reduction == "tree" and is_fused:
        # On CPUs, a fused kernel rounds the elements of a tensor's end, which do not fill a vector
        # register, in another way. Where a tensor ends depends on how it is sharded.
        implementation = "foreach"
    if implementation != "recipe":
        # A new object, because an optimizer checks its implementation when it is made.
        # A loop over tensors has neither flag.
        flags = {name: name == implementation for name in ("foreach", "fused")}
        for group in optimizer.param_groups:
            group |= flags
        optimizer_class: Any = type(optimizer)
        try:
            optimizer = optimizer_class(optimizer.param_groups, **flags)
        except (TypeError, RuntimeError) as error:  # it refuses, or takes no such arguments
            problem = f"{optimizer_class.__name__} has no {implementation}: {one_line(error)}"
            raise NotApplied(f"optimizer_impl: {problem}") from None
    for group in optimizer.param_groups:
        base_lr = group["lr"] if axes.lr is None else axes.lr
        group["lr"] = base_lr * lr_factor(workload, axes)
    return optimizer


def lr_factor(workload: Workload, axes: Axes) -> float:
    """Return the factor of learning rates that the axis `lr_scaling` asks for."""
    if axes.lr_scaling == "linear":
        return axes.batch_size / workload.batch_size
    return 1.0


def make_schedule(
    workload: Workload, optimizer: Optimizer, axes: Axes, steps: int
) -> LRScheduler | None:
    """Return the workload's schedule over `steps` optimizer steps; None for a constant rate.

    Raises NotApplied if the axes change the rate, and the workload's schedule sets rates of its own:
    it has the same ones at twice the optimizer's. So do torch's OneCycleLR and CyclicLR with
    numbers for their rates.
    """
    if axes.lr is not None or lr_factor(workload, axes) != 1:
        rates = simulate_rates(workload, optimizer, steps)
        doubled = simulate_rates(workload, optimizer, steps, scale=2)
        for once, twice in zip(rates, doubled, strict=True):
            # A group that stays at 0 is frozen by a factor, which depends on no rate.
            if once == twice and any(once):
                raise NotApplied(
                    f"lr and lr_scaling had no effect: {type(workload).__name__}.schedule() sets rates"
                    " of its own; needed: the optimizer's, as in"
                    " max_lr=[group['lr'] for group in optimizer.param_groups]"
                )
    return workload.schedule(optimizer, steps)


def simulate_rates(
    workload: Workload, optimizer: Optimizer, steps: int, *, scale: float = 1
) -> list[list[float]]:
    """Return the rates of a schedule at its first steps, shape (groups of parameters, steps).

    It is that of an optimizer with `scale` times the rates. At most SIMULATED_STEPS are simulated. Nothing is
    trained, and the optimizer is left as it was.
    """
    simulated = copy(optimizer)
    simulated.param_groups = []
    rates: list[list[float]] = []
    for group in optimizer.param_groups:
        simulated.param_groups.append(group | {"lr": scale * group["lr"]})
        rates.append([])
    with warnings.catch_warnings():
        # Torch warns of a schedule that is stepped before its optimizer.
        warnings.simplefilter("ignore", UserWarning)
        schedule = workload.schedule(simulated, steps)
        for _ in range(min(steps, SIMULATED_STEPS)):
            for group, group_rates in zip(simulated.param_groups, rates, strict=True):
                group_rates.append(float(group["lr"]))
            if schedule is not None:
                schedule.step()
    return rates
