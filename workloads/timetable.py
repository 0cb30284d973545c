"""A workload whose every phase takes a time that is known beforehand, to test what measures it.

Each part of a step sleeps until its planned end. What the harness then measures, such as
throughput, the share of each phase and the skew between ranks, can be compared with the plan.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from workloads.base import Batch, Splits, Target, TensorSamples, Workload
from workloads.options import Between, Fraction, Settings

# Durations of five successive steps, times `step_seconds`. Their mean is 1. They are unequal, so
# that a median or a trimmed mean, which would be wrong for throughput, gives a visibly wrong
# result.
RHYTHM = (0.75, 0.75, 0.75, 0.75, 2.0)

SAMPLES = 1024
TEST_SAMPLES = 8


@dataclass(frozen=True, kw_only=True)
class TimetableOptions(Settings):
    """How long a step takes and what its phases take of it; the optimizer takes the remainder.

    Rank 0 is a straggler: its backward lasts longer by the `communication` share, and the other
    ranks wait for it that long.
    """

    step_seconds: Annotated[float, Between(0.01)] = 0.5  # in the mean over RHYTHM
    data_wait: Fraction = 0.25  # share of a step, as are the next three
    forward: Fraction = 0.1
    backward: Fraction = 0.15
    communication: Fraction = 0.4  # at every rank but rank 0
    slow_steps: Annotated[int, Between(0)] = 10  # how many steps at the start are slow: a warm-up
    slow: Annotated[float, Between(1)] = 1.3  # duration of a slow step relative to the others


class _Clock:
    """Says where in its step this rank should be, and sleeps until then."""

    def __init__(self, options: TimetableOptions) -> None:
        self.options = options
        self.step = -1  # the current step, counted from 0
        self.step_began = 0.0  # on the monotonic clock, in seconds
        # Seconds by which the last wake-up at a share of the step was too late, by that share.
        self.lateness: dict[float, float] = {}
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        # The system wakes a sleeper up late. The last millisecond is spent in a busy loop instead,
        # where every rank has a core for that.
        self.busy_seconds = 0.001 if ranks <= len(os.sched_getaffinity(0)) else 0.0

    def begin_step(self) -> None:
        """Begin the next step now."""
        self.step_began = time.perf_counter()
        self.step += 1

    def step_seconds(self) -> float:
        """Return the planned duration of the current step in seconds."""
        factor = RHYTHM[self.step % len(RHYTHM)]
        if self.step < self.options.slow_steps:
            factor *= self.options.slow
        return factor * self.options.step_seconds

    def sleep_until(self, share: float) -> None:
        """Sleep until this share of the step is over.

        A sleep ends earlier by as much as the previous one at the same share was late. So a delay
        that another program causes does not change the mean.
        """
        end = self.step_began + share * self.step_seconds() - self.lateness.get(share, 0.0)
        while (remaining := end - time.perf_counter()) > 0:
            time.sleep(max(0.0, remaining - self.busy_seconds))
        self.lateness[share] = time.perf_counter() - end


@dataclass(frozen=True)
class _SlowSamples(TensorSamples):
    """Samples that make their reader wait; reading a batch begins a step."""

    clock: _Clock

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return the samples at `indices` once the share `data_wait` of the step is over."""
        self.clock.begin_step()
        batch = super().batch(indices)
        self.clock.sleep_until(self.clock.options.data_wait)
        return batch


class _SlowGradient(torch.autograd.Function):
    """The identity, whose gradient is not passed on before a share of the step is over."""

    @staticmethod
    def forward(context: Any, inputs: Tensor, clock: _Clock, share: float) -> Tensor:
        """Return `inputs`."""
        context.clock, context.share = clock, share
        return inputs.view_as(inputs)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        """Return the gradient of `inputs`; the clock and the share have none."""
        context.clock.sleep_until(context.share)
        return gradients[0], None, None


class _SlowSGD(SGD):
    """SGD whose step ends with the step of the timetable."""

    clock: _Clock

    def step(self, closure: Any = None) -> Any:
        """Update the parameters, then sleep until the whole step is over."""
        loss = super().step(closure)
        self.clock.sleep_until(1.0)
        return loss


class _Scale(nn.Module):
    """One linear layer from one feature to one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return a tensor of the shape of `inputs`, (samples, 1)."""
        result: Tensor = self.linear(inputs)
        return result


class Timetable(Workload):
    """Learns to double a number, with phases of planned durations."""

    Options = TimetableOptions
    batch_size = 8
    target = Target("error", higher_is_better=False)

    def splits(self) -> Splits:
        """Return numbers from 0 to 1 and their doubles, both of shape (samples, 1)."""
        inputs = torch.linspace(0, 1, SAMPLES).unsqueeze(1)
        self.clock = _Clock(self.options)
        train = _SlowSamples((inputs, 2 * inputs), self.clock)
        test = TensorSamples((inputs[:TEST_SAMPLES], 2 * inputs[:TEST_SAMPLES]))
        return Splits(train=train, test=test)

    def build_model(self) -> nn.Module:
        """Return the linear layer with torch's default initialization."""
        return _Scale()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean squared error, once forward's share of the step is over.

        Its gradient passes once backward's share is over, at rank 0 later.
        """
        options = self.options
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        forward_end = options.data_wait + options.forward
        self.clock.sleep_until(forward_end)
        backward_end = forward_end + options.backward
        if not dist.is_initialized() or dist.get_rank() == 0:
            backward_end += options.communication
        slowed: Tensor = _SlowGradient.apply(loss, self.clock, backward_end)  # type: ignore[no-untyped-call]
        return slowed

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return the slow SGD."""
        optimizer = _SlowSGD(model.parameters(), lr=0.1)
        optimizer.clock = self.clock
        return optimizer

    def evaluate(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the squared error of each sample, shape (samples, 1)."""
        residual: Tensor = model(batch[0]) - batch[1]
        return residual**2

    def metrics(self, rows: Tensor) -> dict[str, float]:
        """Return the mean squared error over the test set."""
        return {"error": float(rows.mean())}

    def flops_per_sample(self) -> float:
        """Return 4: one multiply-add forward, and one for the gradient of the weight."""
        return 4.0
