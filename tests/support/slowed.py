"""An MLP whose steps take longer by a known share of what they take anyway; tests set SLOWER in a copy of this file."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from workloads.base import Batch
from workloads.mlp import MLP

SLOWER = 0.0
MEMORY = 16  # steps


class Slowed(MLP):
    """Spins at the start of a step, by a share of the newest step that followed another at once: the first of a turn
    finds other caches, and the share is of the machine as it is now."""

    began = ended = own = 0.0
    at_once = True

    def optimizer(self, model: nn.Module) -> Optimizer:
        self.between: deque[float] = deque(maxlen=MEMORY)
        optimizer = super().optimizer(model)
        optimizer.register_step_post_hook(self.end)
        return optimizer

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if self.ended:
            self.between.append(time.perf_counter() - self.ended)
            self.at_once = self.between[-1] < 3 * min(self.between)
            until = time.perf_counter() + SLOWER * (self.own + min(self.between))
            while time.perf_counter() < until:
                pass
        self.began = time.perf_counter()
        return super().loss(model, batch)

    def end(self, *of_a_step: Any) -> None:
        self.ended = time.perf_counter()
        if self.at_once:
            self.own = self.ended - self.began
