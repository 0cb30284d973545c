"""The interface of strategies, which decide what ranks share, and when.

The loop, checkpoints and evaluation call its methods at the points where strategies differ, and are
the same for all of them otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.core.errors import NotApplied
from harness.measure.clock import StepClock
from harness.spec.axes import Axes
from harness.training.execution import Compiler
from harness.training.mesh import ParallelMesh
from harness.training.tree_reduction import TreeCollective, local_part
from workloads.base import Workload


class Strategy(ABC):
    """One way to train a model on all ranks of a mesh. One object per rank and trial.

    Only `prepare` has to be written. The other methods are right for a strategy whose ranks each
    have all parameters, and for one that shards them as DTensors.
    """

    # Whether ranks communicate; if not, no process group is made.
    needs_process_group: ClassVar[bool] = True
    # Whether a rank has a part of some parameters only, so that no rank can compute a loss by
    # itself.
    shards_parameters: ClassVar[bool] = False
    # In how many steps the strategy arranges itself, in a way that results depend on. So many forwards
    # and backwards are computed before a checkpoint of later steps is loaded, and their gradients dropped.
    arranging_steps = 0

    def __init__(self, axes: Axes, mesh: ParallelMesh) -> None:
        self.axes = axes
        self.mesh = mesh
        # Sums up the ranks' gradients instead of the backend; set by `prepare`, if at all.
        self.tree: TreeCollective | None = None

    @abstractmethod
    def prepare(
        self, model: nn.Module, workload: Workload, compiler: Compiler, clock: StepClock
    ) -> nn.Module:
        """Return the module that training steps call: `model`, wrapped and compiled.

        `model` is on the device already, and is the one that is evaluated and saved. So its
        parameters must be those that are trained; they may be replaced in place. Communication that
        would otherwise count as forward or backward is reported to `clock`. Raises NotApplied for a
        setting that changes nothing.
        """

    def gradient_sync(self, is_last: bool) -> AbstractContextManager[object]:
        """Return the context of a micro-step's forward and backward.

        Only in the last micro-step of an optimizer step do ranks share gradients. This is not
        called for steps without accumulation.
        """
        return nullcontext()

    def loss_hook(self, clock: StepClock) -> Callable[[Tensor], None] | None:
        """Return a function to call with each loss before its backward, in the timed region.

        None costs no time.
        """
        return None

    def check_effect(self) -> None:
        """Raise NotApplied if a setting did nothing in the steps so far; called between segments.

        Here that is `reduction: tree`.
        """
        if self.tree is not None and not self.tree.calls:
            raise NotApplied("reduction=tree had no effect: nothing was summed up by it")

    def note_gradients(self) -> None:
        """Look at which parameters have gradients, before the optimizer's step; in the timed region."""
        return

    def votes(self) -> tuple[int, ...]:
        """Return numbers that `check_votes` gets the smallest of, of all ranks; see `Trainer.synchronize`."""
        return ()

    def check_votes(self, smallest: Sequence[int]) -> None:
        """Raise NotApplied if what ranks have voted shows that they trained different models."""
        return

    def watch_local_gradients(
        self, model: nn.Module, report: Callable[[str, Tensor], None]
    ) -> Callable[[], None]:
        """Have `report` called with each gradient that this rank computes, by name, in backward.

        That is before ranks share gradients, and before gradients of micro-steps are added up.
        Returns what ends it, and leaves the model as it was.
        """
        handles: list[Any] = []
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:

                def report_local(gradient: Tensor, name: str = name) -> None:
                    report(name, local_part(gradient))

                handles.append(parameter.register_hook(report_local))  # type: ignore[no-untyped-call]

        def stop() -> None:
            for handle in handles:
                handle.remove()

        return stop

    def before_evaluation(self, model: nn.Module) -> None:
        """Make sure that all ranks evaluate the same model.

        Ranks may have buffers of their own, such as running means; all take rank 0's, as DDP does.
        """
        if dist.is_initialized():
            with torch.no_grad():
                for buffer in model.buffers():
                    dist.broadcast(buffer, src=0)


class Single(Strategy):
    """Train in one process, which communicates with no other."""

    needs_process_group = False

    def prepare(
        self, model: nn.Module, workload: Workload, compiler: Compiler, clock: StepClock
    ) -> nn.Module:
        """Return `model`, compiled if the axes say so."""
        return compiler(model)
