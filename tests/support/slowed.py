"""An MLP whose steps take longer by a known share; tests set SLOWER in a copy of this file."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from workloads.base import Batch
from workloads.mlp import MLP

SLOWER = 0.0  # the share of a step's own time that is added to it
REMEMBERED_STEPS = 16


class Slowed(MLP):
    """Spins at the start of a step, for a share of what a step takes on the machine as it is now.

    What a step takes is measured in the newest step that followed another at once: the first step
    of a gate's turn finds other caches.
    """

    step_start = step_end = 0.0  # of the newest step
    step_seconds = 0.0  # of the newest step that followed another at once
    follows_at_once = True

    def optimizer(self, model: nn.Module) -> Optimizer:
        # The seconds between the end of a step and the start of the next one.
        self.gaps: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        optimizer = super().optimizer(model)
        optimizer.register_step_post_hook(self.note_end)
        return optimizer

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if self.step_end:
            gap = time.perf_counter() - self.step_end
            self.gaps.append(gap)
            shortest_gap = min(self.gaps)
            self.follows_at_once = gap < 3 * shortest_gap
            until = time.perf_counter() + SLOWER * (self.step_seconds + shortest_gap)
            while time.perf_counter() < until:
                pass
        self.step_start = time.perf_counter()
        return super().loss(model, batch)

    def note_end(self, *of_a_step: Any) -> None:
        """Note that the optimizer has stepped."""
        self.step_end = time.perf_counter()
        if self.follows_at_once:
            self.step_seconds = self.step_end - self.step_start
