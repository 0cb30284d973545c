"""What recipes of training share: a schedule of learning rates, and which weights decay."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler


def one_cycle(optimizer: Optimizer, steps: int, warmup: float) -> LRScheduler:
    """Return a schedule of one linear rise and one cosine fall over `steps` optimizer steps.

    The learning rate rises to the optimizer's own over the fraction `warmup` of the steps, then
    falls to 0. With r = max(1, round(warmup * steps)) steps of rise and f = max(1, steps - r) of
    fall, the factor at step t, counted from 0, is

        (t + 1) / r                                  while t < r
        (1 + cos(pi * min(1, (t - r + 1) / f))) / 2  from then on

    Unlike torch's OneCycleLR it accepts any number of steps, a single one included, and it leaves
    Adam's betas unchanged.
    """
    rising_steps = max(1, round(warmup * steps))
    falling_steps = max(1, steps - rising_steps)

    def factor(step: int) -> float:
        if step < rising_steps:
            return (step + 1) / rising_steps
        fallen_steps = step - rising_steps + 1
        progress = min(1.0, fallen_steps / falling_steps)
        return (1 + math.cos(math.pi * progress)) / 2

    return LambdaLR(optimizer, factor)


def decayed_matrices(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return an optimizer's groups of parameters: matrices are decayed, biases and norms are not."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
