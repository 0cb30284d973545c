"""The operations of training are those that the mathematics asks for, or unknown."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harness.measure.flops import flops_per_sample
from tests.support.line import LineFit, Options
from tests.support.training import make_assignment, make_trainer
from workloads import Batch, Splits
from workloads.settings import Settings


class Recurrent(nn.Module):
    """An LSTM over eight steps, and a layer on its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.head(self.lstm(inputs)[0][:, -1])
        return output


def mean_output(model: nn.Module, batch: Batch) -> Tensor:
    output: Tensor = model(batch[0]).mean()
    return output


# Multiply-adds of a forward at one sample; a backward by parameters and inputs takes twice as many.
DENSE = 8 * 4 * 9 * 36  # out, in, kernel, places of the output
STEP = 4 * 32 * (16 + 32)  # of the LSTM


@pytest.mark.parametrize(
    ("model", "shape", "multiply_adds"),
    [
        # The gradients of the inputs of a first layer are not computed.
        (nn.Conv2d(4, 8, 3), (4, 8, 8), 2 * DENSE),
        (nn.Conv2d(4, 8, 3, groups=4), (4, 8, 8), 2 * DENSE // 4),
        (nn.Conv1d(64, 64, 4, groups=64), (64, 16), 2 * 64 * 4 * 13),
        (nn.ConvTranspose2d(4, 8, 3, groups=2), (4, 6, 6), 2 * DENSE // 2),
        (
            nn.Sequential(nn.Conv2d(4, 8, 1), nn.Conv2d(8, 8, 3, groups=8)),
            (4, 8, 8),
            2 * 4 * 8 * 64 + 3 * 8 * 9 * 36,
        ),
        # By the inputs, each step but the first also has the gradients of the state before it.
        (Recurrent(), (8, 16), 8 * STEP + 8 * STEP + 7 * 4 * 32 * 32 + 3 * 32 * 4),
    ],
    ids=["dense", "groups", "depthwise", "transposed", "two", "lstm"],
)
def test_operations_by_hand(model: nn.Module, shape: tuple[int, ...], multiply_adds: int) -> None:
    counted = flops_per_sample(mean_output, model, (torch.randn(5, *shape),))
    assert counted == pytest.approx(2 * multiply_adds, rel=0.05)


class Weighted(LineFit):
    """Takes the weight of each step from a generator, which can't be copied."""

    def flops_per_sample(self) -> float | None:
        return None  # what is counted

    def splits(self) -> Splits:
        self.weights = (1.0 for _ in range(2))
        return super().splits()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return super().loss(model, batch) * (next(self.weights) if model.training else 1.0)


def test_what_can_not_be_counted_is_unknown_and_trains(tmp_path: Path) -> None:
    trainer = make_trainer(make_assignment(steps=2), Weighted(Options(), Settings()), tmp_path)
    trainer.run()
    assert trainer.state.step == 2
    assert trainer.parts.flops_per_sample is None
