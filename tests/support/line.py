"""A workload for tests: it fits a line, with a known step time and known misbehavior."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from workloads import Batch, Between, Settings, Splits, Target, TensorSamples, Workload
from workloads.schedules import one_cycle


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """What the workload does besides.

    Misbehavior happens at a step, counted from 1, of the rank `rank`; at 0 it never does.
    """

    step_seconds: Annotated[float, Between(0)] = 0.0
    hurry: str = ""  # a file; once it exists, steps take no longer than they must
    nan_at: int = 0
    raise_at: int = 0
    kill_at: int = 0
    full_at: int = 0  # from this step on, the disk takes nothing from the rank
    exit_at: int = 0
    leave_at: int = 0
    hang_at: int = 0
    hold_at: int = 0
    hold: str = ""  # a file; the step `hold_at` lasts as long as it exists
    # A file with a word for each attempt: the step in which it gets SIGUSR2, or "evaluation"; with
    # "kill-" before it, it gets SIGKILL.
    interrupt: str = ""
    rank: int = 0
    samples: int = 256
    validation: int = 0  # of these samples are validated on, and not trained on
    dropout: float = 0.0
    exact: bool = False  # the model keeps itself out of autocast
    crossed: bool = False  # the model is a `Crossed`
    memory: bool = False  # a buffer outside the state dict, which every forward changes and uses
    noise: float = 0.0  # drawn for every batch that is fetched
    momentum: float | None = None  # with SGD instead of Adam
    one_cycle: bool = False  # the schedule of the learning rate
    average: float = 0.0  # the weight of the past in a moving average of the weights; 0: none


@dataclass(frozen=True)
class NoisySamples(TensorSamples):
    """Samples with noise from all three generators."""

    noise: float

    def batch(self, indices: Sequence[int]) -> Batch:
        inputs, outputs = super().batch(indices)
        drawn = torch.randn(inputs.shape) + float(np.random.standard_normal()) + random.random()
        return inputs + self.noise * drawn, outputs


class Layer(nn.Module):
    """The layer that `layers` names; with `memory`, it remembers the sum of its mean inputs."""

    running_sum: Tensor

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.Tanh(), nn.Dropout(options.dropout), nn.Linear(16, 1)
        )
        self.memory = options.memory
        if options.memory:
            self.register_buffer("running_sum", torch.ones(()), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.memory:
            self.running_sum += inputs.mean()
            inputs = inputs * self.running_sum
        result: Tensor = self.layers(inputs)
        return result


class Line(nn.Module):
    """A model with one layer."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.inner, self.exact = Layer(options), options.exact

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False) if self.exact else nullcontext():
            result: Tensor = self.inner(inputs)
        return result


class Crossed(nn.Module):
    """A model whose parameters are not in the order in which they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.output_layer = nn.Linear(16, 1)
        self.input_layer = nn.Linear(8, 16)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.output_layer(self.input_layer(inputs).tanh())
        return result


class LineFit(Workload):
    """Fits a linear function of eight inputs, with noise in the outputs."""

    Options = Options
    batch_size = 32
    target = Target("error", higher_is_better=False)

    def splits(self) -> Splits:
        source = torch.Generator().manual_seed(7)
        inputs = torch.randn(self.options.samples + 65, 8, generator=source)
        outputs = inputs.sum(1, keepdim=True) + 0.1 * torch.randn(len(inputs), 1, generator=source)
        self.step, self.began = 0, 0.0
        self.average: dict[str, Tensor] = {}
        held_out = self.options.validation
        train = inputs[held_out:-65], outputs[held_out:-65]
        validation = TensorSamples((inputs[:held_out], outputs[:held_out]))
        noise = self.options.noise
        return Splits(
            train=NoisySamples(train, noise) if noise else TensorSamples(train),
            test=TensorSamples((inputs[-65:], outputs[-65:])),
            validation=validation if held_out else None,
        )

    def build_model(self) -> nn.Module:
        if self.options.crossed:
            return Crossed()
        return Line(self.options)

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        return [model.inner] if isinstance(model, Line) else []

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        self.step += 1
        if self.step == 1:
            self.began = time.perf_counter()
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        if self.options.average:
            self._update_average(model)
        if self._is_misbehaving_rank():
            loss = self._misbehave(loss)
            self._interrupt(str(self.step))
        self._wait_for_end_of_step()
        return loss

    def _update_average(self, model: nn.Module) -> None:
        """Move the average towards the weights as they are before this step."""
        for name, parameter in model.named_parameters():
            past = self.average.setdefault(name, parameter.detach().clone())
            past.lerp_(parameter.detach(), 1 - self.options.average)

    def _wait_for_end_of_step(self) -> None:
        """Sleep until the step has lasted `step_seconds`.

        Against a timetable from the first step on, so that what a step does besides takes no extra
        time.
        """
        end = self.began + self.step * self.options.step_seconds
        while time.perf_counter() < end:
            if self.options.hurry and Path(self.options.hurry).exists():
                break
            time.sleep(max(0.0, end - time.perf_counter()))

    def _is_misbehaving_rank(self) -> bool:
        rank: int = self.options.rank
        return int(os.environ.get("RANK", "0")) == rank

    def _interrupt(self, moment: str) -> None:
        """Send this process the signal if the file says so of this moment, and strike that out."""
        if not self.options.interrupt:
            return
        path = Path(self.options.interrupt)
        moments = path.read_text(encoding="utf-8").split()
        signals = {moment: signal.SIGUSR2, f"kill-{moment}": signal.SIGKILL}
        if moments and moments[0] in signals:
            path.write_text(" ".join(moments[1:]), encoding="utf-8")
            os.kill(os.getpid(), signals[moments[0]])

    def _misbehave(self, loss: Tensor) -> Tensor:
        """Do what the options say of this step; returns the loss, or a NaN."""
        options = self.options
        if self.step == options.nan_at:
            return loss * float("nan")
        if self.step == options.raise_at:
            raise ValueError("the dog ate batch 17")
        if self.step == options.exit_at:
            os._exit(7)
        if self.step == options.leave_at:
            raise SystemExit("it had enough")
        if self.step == options.full_at:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        if self.step == options.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.step == options.hang_at:
            time.sleep(600)
        while self.step == options.hold_at and Path(options.hold).exists():
            time.sleep(0.01)
        return loss

    def optimizer(self, model: nn.Module) -> Optimizer:
        if self.options.momentum is not None:
            return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=self.options.momentum)
        return torch.optim.Adam(model.parameters(), lr=1e-2)

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler | None:
        return one_cycle(optimizer, steps, 0.3) if self.options.one_cycle else None

    def evaluate(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return columns: the squared error, and a number that says which sample it was."""
        if self.step and self._is_misbehaving_rank():  # not before training, when it is tried
            self._interrupt("evaluation")
        return torch.stack([(model(batch[0]) - batch[1]).flatten() ** 2, batch[0][:, 0]], dim=1)

    def metrics(self, rows: Tensor) -> dict[str, float]:
        return {
            "error": float(rows[:, 0].mean()),
            "samples": float(len(rows)),
            "checksum": float(rows[:, 1].sum()),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the average; misbehavior and timing are counted in each attempt."""
        return {"average": self.average} if self.options.average else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average = state["average"]

    def flops_per_sample(self) -> float | None:
        """Return the operations of two linear layers, 8x16 and 16x1.

        For m inputs and n outputs, forward takes 2mn and backward twice as many. The gradient of
        the inputs is not computed.
        """
        return 6 * (8 * 16 + 16) - 2 * 8 * 16


class Unlearning(LineFit):
    """Takes a greater error for a better one, so that its first evaluation is its best."""

    target = Target("error", higher_is_better=True)


class ForgetfulFit(LineFit):
    """A workload that does not say what training changes in it."""

    state_dict = Workload.state_dict
