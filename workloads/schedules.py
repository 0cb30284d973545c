"""Learning-rate schedules."""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler


def one_cycle(optimizer: Optimizer, steps: int, warmup: float) -> LRScheduler:
    """Rise linearly to the optimizer's learning rate over the part `warmup` of the steps, then fall to 0 by a cosine.

    Unlike torch's OneCycleLR it takes any number of steps, one included, and leaves the betas alone.
    """
    rise = max(1, round(warmup * steps))
    fall = max(1, steps - rise)

    def scale(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return (1 + math.cos(math.pi * min(1.0, (step - rise + 1) / fall))) / 2

    return LambdaLR(optimizer, scale)
