"""Strategy `single`: one process, which communicates with no other."""

from __future__ import annotations

from torch import nn

from harness.measure.clock import StepClock
from harness.training.execution import Compiler
from harness.training.strategies.base import Strategy
from workloads.base import Workload


class Single(Strategy):
    """Train in one process without a process group."""

    needs_process_group = False

    def prepare(
        self, model: nn.Module, workload: Workload, compiler: Compiler, clock: StepClock
    ) -> nn.Module:
        """Return `model`, compiled if the axes say so."""
        return compiler(model)
