"""A workload whose every phase takes a time that is known beforehand, for testing what measures it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from workloads.base import Batch, Splits, Target, TensorSamples, Workload
from workloads.options import Between, Fraction, Settings

RHYTHM = (
    0.75,
    0.75,
    0.75,
    0.75,
    2.0,
)  # steps of unlike length, so that medians and trimmed means are seen to be wrong


@dataclass(frozen=True, kw_only=True)
class TimetableOptions(Settings):
    """Shares of a step; the optimizer has the rest. Rank 0 is a straggler, for which the others wait."""

    step_seconds: Annotated[float, Between(0.01)] = 0.5  # in the mean over a rhythm
    data_wait: Fraction = 0.25
    forward: Fraction = 0.1
    backward: Fraction = 0.15
    communication: Fraction = 0.4  # of every rank but rank 0, whose backward takes that much longer
    slow_steps: Annotated[int, Between(0)] = 10  # at the start: warm-up
    slow: Annotated[float, Between(1)] = 1.3  # times a step


class _Clock:
    """Where in its step this rank should be."""

    def __init__(self, options: TimetableOptions) -> None:
        self.options, self.step, self.began = options, -1, 0.0
        self.late: dict[
            float, float
        ] = {}  # by share: seconds by which the last wake-up there was too late
        ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        # A sleeper wakes up late; the last millisecond is spent awake where every rank has a core for it.
        self.awake = 0.001 if ranks <= len(os.sched_getaffinity(0)) else 0.0

    def begin_step(self) -> None:
        self.began = time.perf_counter()
        self.step += 1

    def sleep_until(self, share: float) -> None:
        """Until that share of the step has gone by. Who woke up late is that much earlier the next time, so that a
        disturbance by another program does not change the mean."""
        options = self.options
        factor = RHYTHM[self.step % len(RHYTHM)] * (
            options.slow if self.step < options.slow_steps else 1.0
        )
        end = self.began + share * factor * options.step_seconds - self.late.get(share, 0.0)
        while (left := end - time.perf_counter()) > 0:
            time.sleep(max(0.0, left - self.awake))
        self.late[share] = time.perf_counter() - end


class _SlowSamples(TensorSamples):
    """Samples that let their readers wait."""

    clock: _Clock

    def batch(self, indices: Sequence[int]) -> Batch:
        self.clock.begin_step()
        found = super().batch(indices)
        self.clock.sleep_until(self.clock.options.data_wait)
        return found


class _SlowGradient(torch.autograd.Function):
    """Passes its input and, later, its gradient through: the gradient not before a share of the step has gone by."""

    @staticmethod
    def forward(context: Any, inputs: Tensor, clock: _Clock, share: float) -> Tensor:
        context.clock, context.share = clock, share
        return inputs.view_as(inputs)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        context.clock.sleep_until(context.share)
        return gradients[0], None, None


class _SlowSGD(SGD):
    clock: _Clock

    def step(self, closure: Any = None) -> Any:
        found = super().step(closure)
        self.clock.sleep_until(1.0)
        return found


class _Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.linear(inputs)
        return result


class Timetable(Workload):
    Options = TimetableOptions
    batch_size = 8
    target = Target("error", higher_is_better=False)

    def splits(self) -> Splits:
        inputs = torch.linspace(0, 1, 1024).unsqueeze(1)
        self.clock = _Clock(self.options)
        train = _SlowSamples((inputs, 2 * inputs))
        object.__setattr__(train, "clock", self.clock)  # the samples are frozen
        return Splits(train=train, test=TensorSamples((inputs[:8], 2 * inputs[:8])))

    def build_model(self) -> nn.Module:
        return _Scale()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        options = self.options
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        end = options.data_wait + options.forward
        self.clock.sleep_until(end)
        straggler = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
        end += options.backward + (options.communication if straggler else 0.0)
        slowed: Tensor = _SlowGradient.apply(loss, self.clock, end)  # type: ignore[no-untyped-call]
        return slowed

    def optimizer(self, model: nn.Module) -> Optimizer:
        optimizer = _SlowSGD(model.parameters(), lr=0.1)
        optimizer.clock = self.clock
        return optimizer

    def evaluate(self, model: nn.Module, batch: Batch) -> Tensor:
        """Column: squared error."""
        residual: Tensor = model(batch[0]) - batch[1]
        return residual**2

    def metrics(self, rows: Tensor) -> dict[str, float]:
        return {"error": float(rows.mean())}

    def flops_per_sample(self) -> float:
        """One multiply-add forward, one more for the gradient of the weight."""
        return 4.0
