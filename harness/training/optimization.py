"""Optimizer, learning rate and schedule: the workload's recipe, or what the axes put in its place."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from harness.core.errors import NotApplied, one_line
from harness.spec.axes import Axes
from workloads.base import Workload
from workloads.schedules import one_cycle

MOMENTUM = 0.9
ONE_CYCLE_RISE = 0.3
KINDS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
IMPLEMENTATIONS = {
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}


def make_optimizer(workload: Workload, model: nn.Module, axes: Axes) -> Optimizer:
    """The recipe's optimizer, or another over the same groups of parameters; raises NotApplied.

    The linear rule of Goyal et al. 2017 (arXiv:1706.02677): k times the batch, k times the learning rate.
    """
    optimizer = workload.optimizer(model)
    if axes.optimizer != "recipe":
        kept = ("params", "lr", "weight_decay") if axes.optimizer == "adamw" else ("params", "lr")
        groups = [
            {name: group[name] for name in kept if name in group}
            for group in optimizer.param_groups
        ]
        more = {"momentum": MOMENTUM} if axes.optimizer == "sgd" else {}
        optimizer = KINDS[axes.optimizer](
            groups, **more, **IMPLEMENTATIONS.get(axes.optimizer_impl, {})
        )
    elif axes.optimizer_impl != "recipe":
        optimizer = _reimplemented(optimizer, axes.optimizer_impl)
    factor = axes.batch_size / workload.batch_size if axes.lr_scaling == "linear" else 1.0
    for group in optimizer.param_groups:
        group["lr"] = (axes.lr if axes.lr is not None else group["lr"]) * factor
    return optimizer


def _reimplemented(optimizer: Optimizer, implementation: str) -> Optimizer:
    flags = IMPLEMENTATIONS[implementation]
    groups = [{**group, **flags} for group in optimizer.param_groups]
    kind: Any = type(optimizer)
    try:
        return kind(groups, **flags)  # type: ignore[no-any-return]
    except (TypeError, RuntimeError) as error:
        raise NotApplied(
            f"optimizer_impl: {kind.__name__} has no {implementation}: {one_line(error)}"
        ) from None


def make_schedule(
    workload: Workload, optimizer: Optimizer, axes: Axes, steps: int
) -> LRScheduler | None:
    """The schedule over `steps` optimizer steps, stepped after each; None for a constant learning rate."""
    if axes.lr_schedule == "recipe":
        return workload.schedule(optimizer, steps)
    if axes.lr_schedule == "one-cycle":
        return one_cycle(optimizer, steps, ONE_CYCLE_RISE)
    rise = round(axes.lr_warmup * steps)
    if axes.lr_schedule == "constant" and not rise:
        return None

    def scale(step: int) -> float:
        if step < rise:
            return (step + 1) / (rise + 1)
        done = (step - rise) / max(1, steps - rise)
        return {
            "constant": 1.0,
            "cosine": (1 + math.cos(math.pi * done)) / 2,
            "step": 0.1 ** int(3 * done),
        }[axes.lr_schedule]

    return LambdaLR(optimizer, scale)
