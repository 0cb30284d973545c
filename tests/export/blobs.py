"""A small classifier that can be exported, and a trial of it that has kept its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from harness.core.paths import Results, TrialFolder
from harness.records.record import Record
from tests.factories import make_record, write_spec_of, write_trial
from tests.support.training import make_assignment, make_trainer
from workloads import Classifier, Splits, TensorSamples
from workloads.settings import Settings

SAMPLES = 75  # of the test set: two whole batches of 32 and a part
STEPS = 12


class Net(nn.Module):
    """A layer, a batch norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm, self.head = nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)

    def forward(self, points: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.norm(self.hidden(points))))
        return logits


class Blobs(Classifier):
    """Tells apart three clouds of points in four dimensions."""

    def splits(self) -> Splits:
        source = torch.Generator().manual_seed(3)
        labels = torch.randint(0, 3, (256 + SAMPLES,), generator=source)
        centers = 2 * torch.randn(3, 4, generator=source)
        points = centers[labels] + torch.randn(len(labels), 4, generator=source)
        train, test = slice(0, 256), slice(256, None)
        return Splits(
            train=TensorSamples((points[train], labels[train])),
            test=TensorSamples((points[test], labels[test])),
        )

    def build_model(self) -> nn.Module:
        return Net()

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=0.1)

    def flops_per_sample(self) -> float:
        return 1.0


def make_blobs() -> Blobs:
    return Blobs(Settings(), Settings())


@dataclass(frozen=True)
class TrainedTrial:
    """A trial on record whose best parameters are in its folder."""

    record: Record
    folder: TrialFolder
    metrics: Mapping[str, float]  # of the last evaluation in training


def train(results: Results) -> TrainedTrial:
    """Train a trial in this process, and leave its record and its checkpoint in a sweep `demo`."""
    assignment = replace(make_assignment(steps=STEPS), checkpoint="best")
    folder = results.sweep_folder("demo").trial_folder(assignment.trial.id)
    trainer = make_trainer(assignment, make_blobs(), folder.path)
    trainer.run()
    record = make_record(assignment.trial.cell)
    assert record.rank0 is not None
    rank0 = replace(record.rank0, checkpoint="best")
    record = replace(record, rank0=rank0)
    write_trial(results.sweep_folder("demo"), record)
    write_spec_of(results.sweep_folder("demo"), "demo", [record.trial])
    return TrainedTrial(record, folder, trainer.state.evaluations[-1].metrics)


def perturbed(model: nn.Module, change: float = 1e-3) -> nn.Module:
    """Return the model with one weight of its head changed in place."""
    with torch.no_grad():
        head = model.get_submodule("head")
        assert isinstance(head, nn.Linear)
        head.weight[0, 0] += change
    return model


def files_below(folder: Path) -> list[str]:
    """Return the names of all files below a folder, sorted."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
