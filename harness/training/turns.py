"""Training steps of several updates, each with a loss and an optimizer: a workload's own `turns`.

A turn is a whole update: forward and backward over all micro-batches, clipping, the loss scale, the
optimizer and its schedule. Parameters that are another turn's turn are left as they are: where a
strategy allows it they need no gradients meanwhile, and otherwise their gradients are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from harness.core.errors import NotApplied
from harness.spec.axes import DEFAULTS, Axes
from harness.training.optimization import adapt_optimizer, make_schedule
from harness.training.step import TrainStep
from workloads.base import Batch, Workload

# Settings that several turns can't have, and why.
REFUSED: dict[str, tuple[Any, str]] = {
    "reduction": ("tree", "its tree has the gradients of one backward"),
    "static_graph": (True, "each turn has a graph of its own"),
    "comm_hook": ("powersgd", "its errors would pass from one turn to the next"),
    "optimizer": ("sgd", "each turn needs a learning rate of its own"),
}


@dataclass(frozen=True, kw_only=True)
class PreparedTurn:
    """A turn with all that the axes make of it."""

    loss: Callable[[nn.Module, Batch], Tensor]  # under autocast where the axes ask for it
    optimizer: Optimizer
    schedule: LRScheduler | None
    frozen: Sequence[nn.Parameter]  # of the other turns; none where a strategy can't freeze them


def has_turns(workload: Workload) -> bool:
    """Return whether a workload defines the updates of a step itself."""
    return type(workload).turns is not Workload.turns


def prepare_turns(
    workload: Workload,
    model: nn.Module,
    axes: Axes,
    steps: int,
    wrap: Callable[[Callable[..., Tensor]], Callable[..., Tensor]],
    *,
    can_freeze: bool,
) -> list[PreparedTurn]:
    """Return the workload's turns over `steps` optimizer steps, their losses wrapped by `wrap`.

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
        for parameter in _parameters(turn.optimizer):
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
        prepared.append(
            PreparedTurn(
                loss=wrap(turn.loss),
                optimizer=optimizer,
                schedule=make_schedule(workload, optimizer, axes, steps),
                frozen=frozen if can_freeze else (),
            )
        )
    return prepared


def _check_axes(axes: Axes, name: str, count: int) -> None:
    """Raise NotApplied for a setting that makes no sense with several turns."""
    for axis, (value, reason) in REFUSED.items():
        if getattr(axes, axis) == value:
            shown = str(value).lower()
            raise NotApplied(f"{axis}={shown} can't be had with the {count} of {name}: {reason}")
    if axes.lr != DEFAULTS["lr"]:
        raise NotApplied(
            f"lr={axes.lr:g} can't be had with the {count} of {name}: each has its own; make it an"
            " option of the workload"
        )


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return all parameters of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


@dataclass(kw_only=True)
class TurnStep(TrainStep):
    """A training step of several updates; loss, optimizer and schedule are those of the turn."""

    turns: Sequence[PreparedTurn]

    def update(self, batch: Batch) -> Tensor:
        """Take every turn; return the sum of their mean losses."""
        losses = []
        for number, turn in enumerate(self.turns):
            self.loss, self.optimizer, self.schedule = turn.loss, turn.optimizer, turn.schedule
            self.first_micro_step = number * self.grad_accum_steps
            self._freeze(turn.frozen)
            losses.append(super().update(batch))
            self._unfreeze(turn.frozen)
        return torch.stack(losses).sum()

    def _freeze(self, parameters: Sequence[nn.Parameter]) -> None:
        """Have the coming backward compute no gradients of these parameters."""
        for parameter in parameters:
            parameter.requires_grad_(False)

    def _unfreeze(self, parameters: Sequence[nn.Parameter]) -> None:
        """End that, and drop the gradients of all turns."""
        for parameter in parameters:
            parameter.requires_grad_(True)
        for turn in self.turns:
            turn.optimizer.zero_grad(set_to_none=True)

    def compute_all_gradients(self, batch: Batch) -> None:
        """Compute the gradients of every turn, and drop them."""
        for turn in self.turns:
            self.loss = turn.loss
            self._freeze(turn.frozen)
            self.compute_gradients(batch)
            self._unfreeze(turn.frozen)
