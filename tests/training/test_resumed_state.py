"""A trial resumes to the same bits, or says that it starts again: with the state of modules, optimizers, data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import Dataset

from harness.training.train import Trainer
from tests.support.training import NoEvaluation, digest_of, make_assignment, make_trainer
from workloads import Batch, Splits, TensorSamples, Workload
from workloads.settings import Settings

STEPS, STOP = 12, 5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.layers(inputs)
        return output


class Annealed(Net):
    """A model with a temperature that falls with each step, kept as a number of Python."""

    temperature = 1.0

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.temperature *= 0.9
        return super().forward(inputs) * (1 + self.temperature)


class AnnealedSaved(Annealed):
    """The same, saved as torch wants it."""

    def get_extra_state(self) -> dict[str, float]:
        return {"temperature": self.temperature}

    def set_extra_state(self, state: Any) -> None:
        self.temperature = state["temperature"]


class Lazy(Net):
    """A model with a running scale in a buffer that the first batch makes."""

    scale: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", None)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            now = inputs.detach().abs().mean(0)
            self.scale = now if self.scale is None else 0.9 * self.scale + 0.1 * now
        return super().forward(inputs if self.scale is None else inputs / self.scale)


class Points(Workload):
    model: type[nn.Module] = Net

    def splits(self) -> Splits:
        drawn = torch.Generator().manual_seed(0)
        inputs = torch.randn(128, 8, generator=drawn)
        samples = TensorSamples((inputs, inputs[:, :1] * 2))
        return Splits(samples, samples)

    def build_model(self) -> nn.Module:
        return self.model()

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=0.05, momentum=0.9)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = (model(batch[0]) - batch[1]).square().mean()
        return loss


class ExtraState(Points):
    model = AnnealedSaved


class LazyBuffer(Points):
    model = Lazy


class PythonNumber(Points):
    model = Annealed


class Augmented(Dataset[Any]):
    """Samples with noise of a generator of their own."""

    def __init__(self) -> None:
        self.inputs = torch.randn(128, 8, generator=torch.Generator().manual_seed(0))
        self.rng = np.random.default_rng(7)

    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.from_numpy(self.rng.normal(0, 0.3, 8).astype("float32"))
        return self.inputs[index] + noise, self.inputs[index, :1]


class OwnGenerator(Points):
    def splits(self) -> Any:
        return Splits(Augmented(), super().splits().test)  # type: ignore[arg-type]


class Counting(SGD):
    """An optimizer with a rate that falls by a count in an attribute."""

    count = 0

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        for group in self.param_groups:
            group["lr"] = 0.05 / (1 + self.count / 10)
        return super().step(closure)


class AttributeCount(Points):
    def optimizer(self, model: nn.Module) -> Optimizer:
        return Counting(model.parameters(), lr=0.05, momentum=0.9)


def trained(folder: Path, workload_class: type[Workload], *, stop: int | None = None) -> Trainer:
    """Build a trial, which resumes if it can, and train it to its end or to a step that is saved."""
    workload = workload_class(Settings(), Settings())
    trainer = make_trainer(make_assignment(steps=STEPS), workload, folder, hooks=NoEvaluation())
    trainer.run(stop)
    if stop is not None:
        trainer.checkpointer.save(trainer.state)
    return trainer


@pytest.mark.parametrize("workload_class", [Points, ExtraState])
def test_state_that_torch_knows_is_resumed_to_the_same_bits(
    tmp_path: Path, workload_class: type[Workload]
) -> None:
    whole = trained(tmp_path / "whole", workload_class)
    trained(tmp_path / "resumed", workload_class, stop=STOP)
    resumed = trained(tmp_path / "resumed", workload_class)
    assert [interruption.step for interruption in resumed.state.interruptions] == [STOP]
    assert resumed.state.series["loss"] == whole.state.series["loss"]
    assert digest_of(resumed) == digest_of(whole)


@pytest.mark.parametrize(
    ("workload_class", "name"),
    [
        (PythonNumber, "Annealed.temperature"),
        (LazyBuffer, "the shape of buffer scale"),
        (OwnGenerator, "generators of the data set"),
        (AttributeCount, "Counting.count"),
    ],
)
def test_a_trial_with_a_state_that_nobody_saves_starts_again_and_says_so(
    tmp_path: Path,
    workload_class: type[Workload],
    name: str,
) -> None:
    whole = trained(tmp_path / "whole", workload_class)
    problem = f"step {STOP} was not saved: training has changed {name}, which no checkpoint has"
    (line,) = trained(tmp_path / "resumed", workload_class, stop=STOP).state.unsaved
    assert line.startswith(problem)
    resumed = trained(tmp_path / "resumed", workload_class)
    assert resumed.state.interruptions == []
    assert resumed.state.series["loss"] == whole.state.series["loss"]
    assert digest_of(resumed) == digest_of(whole)


def test_a_state_that_changes_after_a_save_keeps_later_ones_from_being_made(tmp_path: Path) -> None:
    """The next attempt resumes from the save before, which needs nothing that is not in it."""
    trainer = trained(tmp_path, Points, stop=STOP)
    vars(trainer.parts.workload)["late"] = 1
    trainer.run(STOP + 1)
    assert not trainer.checkpointer.save(trainer.state)
    (line,) = trainer.state.unsaved
    assert line.startswith(
        f"step {STOP + 1} was not saved: training has changed Points.late, which"
    )
    assert line.endswith(f"; the next attempt starts from step {STOP}")
    resumed = trained(tmp_path, Points)
    assert [interruption.step for interruption in resumed.state.interruptions] == [STOP]
