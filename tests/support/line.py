"""A workload for tests: fits a line, with a known step time and known misbehaviour."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workloads import Batch, Between, Settings, Splits, Target, TensorSamples, Workload


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Misbehaviour happens at a step, counted from 1, of the rank named; 0 is never."""

    step_seconds: Annotated[float, Between(0)] = 0.0
    hurry: str = ""  # once there is a file of this name, steps last no longer than they must
    nan_at: int = 0
    raise_at: int = 0
    kill_at: int = 0
    exit_at: int = 0
    leave_at: int = 0
    hang_at: int = 0
    hold_at: int = 0
    hold: str = ""  # the step `hold_at` lasts as long as there is a file of this name
    interrupt: str = (
        ""  # a file with a word for each attempt: in which step, or "evaluation", it gets SIGUSR2
    )
    rank: int = 0
    samples: int = 256
    sequential: bool = False  # a bare nn.Sequential as the model
    dropout: float = 0.0
    exact: bool = False  # the model keeps itself out of autocast
    crossed: bool = False  # the model is a `Crossed`
    memory: bool = False  # a buffer that is in no state, and that every forward moves and reads
    noise: float = 0.0  # drawn anew for every batch that is fetched
    momentum: float | None = None  # of SGD, instead of Adam


@dataclass(frozen=True)
class Noisy(TensorSamples):
    """Draws from all three generators."""

    noise: float

    def batch(self, indices: Sequence[int]) -> Batch:
        inputs, outputs = super().batch(indices)
        drawn = torch.randn(inputs.shape) + float(np.random.standard_normal()) + random.random()
        return inputs + self.noise * drawn, outputs


class Block(nn.Module):
    seen: Tensor

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.Tanh(), nn.Dropout(options.dropout), nn.Linear(16, 1)
        )
        self.memory = options.memory
        if options.memory:
            self.register_buffer("seen", torch.ones(()), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.memory:
            self.seen += inputs.mean()
            inputs = inputs * self.seen
        result: Tensor = self.layers(inputs)
        return result


class Line(nn.Module):
    def __init__(self, options: Options) -> None:
        super().__init__()
        self.inner, self.exact = Block(options), options.exact

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False) if self.exact else nullcontext():
            result: Tensor = self.inner(inputs)
        return result


class Crossed(nn.Module):
    """Its layers are not listed in the order in which they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.second, self.first = nn.Linear(16, 1), nn.Linear(8, 16)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(inputs).tanh())
        return result


class LineFit(Workload):
    Options = Options
    batch_size = 32
    target = Target("error", higher_is_better=False)

    def splits(self) -> Splits:
        source = torch.Generator().manual_seed(7)
        inputs = torch.randn(self.options.samples + 65, 8, generator=source)
        outputs = inputs.sum(1, keepdim=True) + 0.1 * torch.randn(len(inputs), 1, generator=source)
        self.step, self.began = 0, 0.0
        train = inputs[:-65], outputs[:-65]
        noise = self.options.noise
        return Splits(
            train=Noisy(train, noise) if noise else TensorSamples(train),
            test=TensorSamples((inputs[-65:], outputs[-65:])),
        )

    def build_model(self) -> nn.Module:
        if self.options.crossed:
            return Crossed()
        model = Line(self.options)
        return model.inner.layers if self.options.sequential else model

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        return [model.inner] if isinstance(model, Line) else []

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        self.step += 1
        if self.step == 1:
            self.began = time.perf_counter()
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        if self._named():
            loss = self._misbehave(loss)
            self._interrupt(str(self.step))
        # Against a timetable, so that what a step does besides takes no time of its own.
        while (
            left := self.began + self.step * self.options.step_seconds - time.perf_counter()
        ) > 0:
            if self.options.hurry and Path(self.options.hurry).exists():
                break
            time.sleep(left)
        return loss

    def _named(self) -> bool:
        rank: int = self.options.rank
        return int(os.environ.get("RANK", "0")) == rank

    def _interrupt(self, moment: str) -> None:
        """Gets the signal if this is what the file says next."""
        file = Path(self.options.interrupt)
        words = file.read_text(encoding="utf-8").split() if self.options.interrupt else []
        if words[:1] == [moment]:
            file.write_text(" ".join(words[1:]), encoding="utf-8")
            os.kill(os.getpid(), signal.SIGUSR2)

    def _misbehave(self, loss: Tensor) -> Tensor:
        options = self.options
        if self.step == options.nan_at:
            return loss * float("nan")
        if self.step == options.raise_at:
            raise ValueError("the dog ate batch 17")
        if self.step == options.exit_at:
            os._exit(7)
        if self.step == options.leave_at:
            raise SystemExit("it had enough")
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

    def evaluate(self, model: nn.Module, batch: Batch) -> Tensor:
        """Columns: squared error, and the sample's first input, which says which sample it was."""
        if self._named():
            self._interrupt("evaluation")
        return torch.stack([(model(batch[0]) - batch[1]).flatten() ** 2, batch[0][:, 0]], dim=1)

    def metrics(self, rows: Tensor) -> dict[str, float]:
        return {
            "error": float(rows[:, 0].mean()),
            "samples": float(len(rows)),
            "checksum": float(rows[:, 1].sum()),
        }

    def flops_per_sample(self) -> float:
        """Two linear layers of 8x16 and 16x1: forward 2mn each, backward twice that less the first input gradient."""
        return 6 * (8 * 16 + 16) - 2 * 8 * 16
