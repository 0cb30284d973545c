"""Defines what a user's own axis is: a value that changes training, and the proof that it did."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from workloads.base import Batch


class CustomAxis(ABC):
    """A user's own axis. Each rank of a trial creates one instance, with the cell's value.

    A trial at the default value creates none, so that its cells are those of a sweep without the
    axis. Whatever training changes belongs into the model or the optimizer, which checkpoints have.
    """

    # The type of the values, which sweep files are checked against: `Literal["none", "all"]`, or
    # `Annotated[float, Between(0, 1)]`.
    Value: ClassVar[Any] = str
    # The value that leaves training as it is.
    default: ClassVar[Any]
    # The environment variables that any value sets.
    variables: ClassVar[tuple[str, ...]] = ()

    def __init__(self, value: Any) -> None:
        self.value = value  # as JSON has it: a list for a tuple

    def conflict(self, axes: Mapping[str, Any]) -> str | None:
        """Return why this value makes no sense with a cell's axes, None if it does."""
        return None

    def environment(self) -> Mapping[str, str]:
        """Return the variables that ranks begin with, of those in `variables`."""
        return {}

    def change_model(self, model: nn.Module) -> None:
        """Change the model in place, as it was built, before a strategy wraps it."""
        return

    def change_optimizer(self, optimizer: Optimizer) -> None:
        """Change an optimizer in place, before the first step."""
        return

    def change_loss(
        self, loss: Callable[[nn.Module, Batch], Tensor]
    ) -> Callable[[nn.Module, Batch], Tensor]:
        """Return what a training step calls in place of the workload's mean loss of a batch."""
        return loss

    @abstractmethod
    def find_problem(self) -> str | None:
        """Return why this value has had no effect in the steps so far, None if it had one.

        The harness asks between segments of training, and fails a trial without an effect.
        """
