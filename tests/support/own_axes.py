"""Axes as users write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from workloads import Batch, Between, CustomAxis

LossFunction = Callable[[nn.Module, Batch], Tensor]


class Scale(CustomAxis):
    """Multiplies the loss, and the learning rate with it."""

    Value = Annotated[float, Between(0.5, 4)]
    default = 1.0

    def __init__(self, value: float) -> None:
        super().__init__(value)
        self.calls = 0

    def conflict(self, axes: Mapping[str, Any]) -> str | None:
        if axes["precision"] == "fp16":
            return "precision fp16 scales the loss itself"
        return None

    def change_optimizer(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= self.value

    def change_loss(self, loss: LossFunction) -> LossFunction:
        def scaled(model: nn.Module, batch: Batch) -> Tensor:
            self.calls += 1
            result: Tensor = self.value * loss(model, batch)
            return result

        return scaled

    def find_problem(self) -> str | None:
        return None if self.calls else "the loss was not computed"


class Freeze(CustomAxis):
    """Leaves the convolutions of a model as they are, which the test workload has none of."""

    Value = Literal["none", "convolutions"]
    default = "none"

    def change_model(self, model: nn.Module) -> None:
        self.frozen = 0
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                module.requires_grad_(False)
                self.frozen += 1

    def find_problem(self) -> str | None:
        return None if self.frozen else "the model has no convolution"


class Threads(CustomAxis):
    """Sets a variable that a library reads when it is loaded."""

    Value = Literal["free", "bound"]
    default = "free"
    variables = ("OMP_PROC_BIND",)

    def environment(self) -> Mapping[str, str]:
        return {"OMP_PROC_BIND": "true"}

    def find_problem(self) -> str | None:
        return None


class Idle(CustomAxis):
    """Changes nothing."""

    default = ""

    def find_problem(self) -> str | None:
        return None
