"""Optimizer, learning rate and schedule: the workload's recipe, or the replacements that the axes ask for.

Settings that are left at "recipe" are the workload's own, so that a sweep can change one of them
and leave the others as they are. A workload may define several updates of a step, its `turns`, each
with a loss, an optimizer and a schedule.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from harness.core.errors import NotApplied, one_line
from harness.spec.axes import DEFAULTS, Axes
from harness.training.precision import by_mesh
from workloads.base import Batch, Workload
from workloads.schedules import one_cycle

ONE_CYCLE_RISE = 0.3  # the share of the steps in which one-cycle's learning rate rises
OPTIMIZERS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
# The settings that another optimizer takes over from the recipe's parameter groups. Weight decay goes to AdamW
# only: in SGD and Adam it is added to the gradient, which is something else.
INHERITED_SETTINGS = {
    "sgd": ("params", "lr"),
    "adam": ("params", "lr"),
    "adamw": ("params", "lr", "weight_decay"),
}
EXTRA_SETTINGS: dict[str, dict[str, float]] = {"sgd": {"momentum": 0.9}, "adam": {}, "adamw": {}}
# The axis optimizer_impl, as torch's optimizers take it: a loop over tensors, a few kernels over
# lists of tensors, or one kernel.
IMPLEMENTATIONS = {
    "recipe": {},
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}
# The axis lr_schedule: the factor of the peak learning rate, by the share of the steps after the
# warm-up that are done.
DECAYS: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,  # half of one: from 1 to 0
    "step": lambda done: 0.1 ** int(3 * done),  # 1, 0.1 and 0.01 in the three thirds
}
SIMULATED_STEPS = 1000  # of a schedule at most, to see whether it depends on the optimizer's rates
# Settings that several turns can't have, and why.
REFUSED_WITH_TURNS: dict[str, tuple[Any, str]] = {
    "reduction": ("tree", "its tree has the gradients of one backward"),
    "static_graph": (True, "each turn has its own graph"),
    "comm_hook": ("powersgd", "its errors would pass from one turn to the next"),
    "optimizer": ("sgd", "each turn needs its own learning rate"),
    "strategy": ("pp", "its schedule has the micro-batches of one loss"),
}


def adapt_optimizer(optimizer: Optimizer, workload: Workload, axes: Axes) -> Optimizer:
    """Return an optimizer of the workload, or the axes' own over the same groups of parameters.

    With lr_scaling=linear, k times the recipe's batch size means k times the learning rate (Goyal
    et al. 2017, arXiv:1706.02677). Raises NotApplied for an implementation that the optimizer
    doesn't have.
    """
    if axes.optimizer != "recipe":
        optimizer = _replace_optimizer(optimizer, axes)
    elif axes.optimizer_impl != "recipe":
        optimizer = _reimplement(optimizer, axes.optimizer_impl)
    is_fused = any(group.get("fused") for group in optimizer.param_groups)
    if axes.reduction == "tree" and is_fused:
        # On CPUs, a fused kernel rounds the elements of a tensor's end, which do not fill a vector
        # register, in another way. Where a tensor ends depends on how it is sharded.
        optimizer = _reimplement(optimizer, "foreach")
    factor = lr_factor(workload, axes)
    for group in optimizer.param_groups:
        base_lr = group["lr"] if axes.lr is None else axes.lr
        group["lr"] = base_lr * factor
    # Each group is sharded over one mesh, or not at all: the kernels of an optimizer over lists of
    # tensors take no mix, which tensor parallelism leaves.
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        for parameters in by_mesh(group["params"]) or [[]]:  # schedules may have a rate for it
            groups.append({**group, "params": parameters})
    optimizer.param_groups[:] = groups
    return optimizer


def lr_factor(workload: Workload, axes: Axes) -> float:
    """Return the factor of learning rates that the axis `lr_scaling` asks for."""
    if axes.lr_scaling == "linear":
        return axes.batch_size / workload.batch_size
    return 1.0


def _replace_optimizer(recipe: Optimizer, axes: Axes) -> Optimizer:
    """Return the optimizer of the axes over the recipe's groups of parameters."""
    groups = []
    for recipe_group in recipe.param_groups:
        group = {}
        for name in INHERITED_SETTINGS[axes.optimizer]:
            if name in recipe_group:
                group[name] = recipe_group[name]
        groups.append(group)
    optimizer: Optimizer = OPTIMIZERS[axes.optimizer](
        groups, **EXTRA_SETTINGS[axes.optimizer], **IMPLEMENTATIONS[axes.optimizer_impl]
    )
    return optimizer


def _reimplement(optimizer: Optimizer, implementation: str) -> Optimizer:
    """Return the same optimizer with another implementation of its step.

    It is a new object, because an optimizer checks its implementation when it is made.
    Raises NotApplied if it refuses, or takes no such arguments.
    """
    flags = IMPLEMENTATIONS[implementation]
    groups = [{**group, **flags} for group in optimizer.param_groups]
    optimizer_class: Any = type(optimizer)
    try:
        reimplemented: Optimizer = optimizer_class(groups, **flags)
    except (TypeError, RuntimeError) as error:
        raise NotApplied(
            f"optimizer_impl: {optimizer_class.__name__} has no {implementation}: {one_line(error)}"
        ) from None
    return reimplemented


def make_schedule(
    workload: Workload, optimizer: Optimizer, axes: Axes, steps: int
) -> LRScheduler | None:
    """Return the schedule over `steps` optimizer steps; None for a constant learning rate.

    It is stepped after each optimizer step. Over the first share `lr_warmup` of the steps the rate
    rises linearly, then it decays. Raises NotApplied if the axes change the rate, and the workload's
    schedule sets rates of its own.
    """
    if axes.lr_schedule == "recipe":
        if axes.lr is not None or lr_factor(workload, axes) != 1:
            _check_schedule(workload, optimizer, axes, steps)
        return workload.schedule(optimizer, steps)
    if axes.lr_schedule == "one-cycle":
        return one_cycle(optimizer, steps, ONE_CYCLE_RISE)
    warmup_steps = round(axes.lr_warmup * steps)
    if axes.lr_schedule == "constant" and not warmup_steps:
        return None
    decay = DECAYS[axes.lr_schedule]

    def scale(step: int) -> float:
        """Return the factor of the peak learning rate at a step, counted from 0."""
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        return decay((step - warmup_steps) / max(1, steps - warmup_steps))

    return LambdaLR(optimizer, scale)


def _check_schedule(workload: Workload, optimizer: Optimizer, axes: Axes, steps: int) -> None:
    """Raise NotApplied if the workload's schedule has the same rates at twice the optimizer's.

    So do torch's OneCycleLR and CyclicLR with numbers for their rates.
    """
    simulated = min(steps, SIMULATED_STEPS)

    def at_twice_the_rates() -> LRScheduler | None:
        for group in optimizer.param_groups:
            group["lr"] = 2 * group["lr"]
        return workload.schedule(optimizer, steps)

    rates = simulate_rates(optimizer, lambda: workload.schedule(optimizer, steps), simulated)
    doubled = simulate_rates(optimizer, at_twice_the_rates, simulated)
    # A group that stays at 0 is frozen by a factor, which depends on no rate.
    if all(once != twice or not any(once) for once, twice in zip(rates, doubled, strict=True)):
        return
    setting = f"lr_scaling={axes.lr_scaling}" if axes.lr is None else f"lr={axes.lr:g}"
    raise NotApplied(
        f"{setting} had no effect: {type(workload).__name__}.schedule() sets rates of its own; needed:"
        " the optimizer's, as in max_lr=[group['lr'] for group in optimizer.param_groups]"
    )


def simulate_rates(
    optimizer: Optimizer, make_schedule: Callable[[], LRScheduler | None], steps: int
) -> list[list[float]]:
    """Return the rates of a schedule at its first steps, shape (groups of parameters, steps).

    Nothing is trained, and the optimizer is left as it was before `make_schedule` was called.
    """
    groups = optimizer.param_groups
    before = [dict(group) for group in groups]
    for group in groups:
        # Torch's schedules fill a rate that is a tensor in place: they get a copy to fill.
        if isinstance(group["lr"], Tensor):
            group["lr"] = group["lr"].clone()
    rates: list[list[float]] = [[] for _ in groups]
    with warnings.catch_warnings():
        # Torch warns of a schedule that is stepped before its optimizer.
        warnings.simplefilter("ignore", UserWarning)
        schedule = make_schedule()
        for _ in range(steps):
            for group, group_rates in zip(groups, rates, strict=True):
                group_rates.append(float(group["lr"]))
            if schedule is not None:
                schedule.step()
    for group, settings in zip(groups, before, strict=True):
        group.clear()
        group.update(settings)
    return rates


@dataclass(frozen=True, kw_only=True)
class PreparedTurn:
    """A turn with all that the axes make of it."""

    loss: Callable[[nn.Module, Batch], Tensor]  # under autocast where the axes ask for it
    optimizer: Optimizer
    schedule: LRScheduler | None
    frozen: Sequence[nn.Parameter]  # of the other turns; none where a strategy can't freeze them


def prepare_turns(
    workload: Workload,
    model: nn.Module,
    axes: Axes,
    steps: int,
    wrap: Callable[[Callable[..., Tensor]], Callable[..., Tensor]],
    *,
    change_optimizers: Sequence[Callable[[Optimizer], object]] = (),
    can_freeze: bool,
) -> list[PreparedTurn]:
    """Return the workload's turns over `steps` optimizer steps, their losses wrapped by `wrap`.

    `change_optimizers` are called with each optimizer before its schedule is made, which keeps the
    learning rates that it finds.

    Raises NotApplied for settings that several turns can't have, for two turns that train the same
    parameter, and for a workload without any.
    """
    turns = workload.turns(model)
    name = f"{type(workload).__name__}.turns()"
    if not turns:
        raise NotApplied(f"{name}: found none; needed: one or more")
    if len(turns) > 1:
        _check_axes(axes, name, len(turns))
    trained: dict[nn.Parameter, str] = {}
    for turn in turns:
        parameters: list[nn.Parameter] = []
        for group in turn.optimizer.param_groups:
            parameters += group["params"]
        for parameter in parameters:
            if parameter in trained:
                raise NotApplied(
                    f"{name}: {trained[parameter]!r} and {turn.name!r} train the same parameter;"
                    " needed: each in one turn"
                )
            trained[parameter] = turn.name
    prepared = []
    for turn in turns:
        frozen = [parameter for parameter, owner in trained.items() if owner != turn.name]
        optimizer = adapt_optimizer(turn.optimizer, workload, axes)
        for change in change_optimizers:
            change(optimizer)
        prepared.append(
            PreparedTurn(
                loss=wrap(turn.loss),
                optimizer=optimizer,
                schedule=make_schedule(workload, optimizer, axes, steps),
                frozen=frozen if can_freeze else (),
            )
        )
    return prepared


def check_parameters(workload: Workload, model: nn.Module, turns: Sequence[PreparedTurn]) -> None:
    """Raise NotApplied for a trained parameter outside the model: no strategy or checkpoint has it."""
    of_model = set(model.parameters())
    for turn in turns:
        for group in turn.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in of_model:
                    raise NotApplied(
                        f"{type(workload).__name__}: found an optimizer with a parameter of shape"
                        f" {tuple(parameter.shape)} that is not the model's; needed: all that train in"
                        " build_model(), so that ranks share their gradients and checkpoints have them"
                    )


def _check_axes(axes: Axes, name: str, count: int) -> None:
    """Raise NotApplied for a setting that makes no sense with several turns."""
    for axis, (value, reason) in REFUSED_WITH_TURNS.items():
        if getattr(axes, axis) == value:
            shown = str(value).lower()
            raise NotApplied(f"{axis}={shown} cannot be used with the {count} of {name}: {reason}")
    if axes.lr != DEFAULTS["lr"]:
        raise NotApplied(
            f"lr={axes.lr:g} cannot be used with the {count} of {name}: each has its own; make it an"
            " option of the workload"
        )
