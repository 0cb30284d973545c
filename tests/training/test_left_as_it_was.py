"""What a digest covers, and what an evaluation and the bookkeeping after training leave as it was."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer, SparseAdam

from harness.records.assignment import Assignment
from harness.records.record import RankResult
from harness.records.trace import Recording, decode_trace, trace_path
from harness.reproduce.recorder import Recorder
from harness.sweep.cell import Length
from harness.training import worker
from harness.training.train import Trainer
from tests.support.training import digest_of, make_assignment, make_trainer
from tests.training.test_resumed_state import Points as PlainPoints
from workloads import Batch, Splits, TensorSamples, Workload
from workloads.settings import Settings


class Normalized(nn.Module):
    """A model with running statistics in buffers, which training uses, and one made by its first batch."""

    mean: Tensor
    scale: Tensor | None

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)
        self.norm = nn.BatchNorm1d(16, momentum=momentum)
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("scale", None)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.first(inputs)
        if self.scale is None:
            self.scale = torch.ones(())
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        output: Tensor = self.last(self.norm(hidden - self.mean))
        return output


class Points(PlainPoints):
    """Fits points; its evaluation draws numbers, changes modes and buffers."""

    momentum = 0.1

    def build_model(self) -> nn.Module:
        return Normalized(self.momentum)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        noise = torch.randn(()) + random.random() + float(np.random.random())
        loss: Tensor = (model(batch[0]) + 0.01 * noise - batch[1]).square().mean()
        return loss

    def evaluate(self, model: nn.Module, batch: Batch) -> Tensor:
        model.train()
        return super().evaluate(model, batch) + torch.rand(()) + random.random()


def trained(folder: Path, workload: Workload, assignment: Assignment) -> Trainer:
    trainer = make_trainer(assignment, workload, folder)
    trainer.run()
    return trainer


def evaluated_every(steps: int) -> Assignment:
    assignment = make_assignment(steps=12)
    cell = replace(assignment.trial.cell, evaluate=Length(steps=steps))
    return replace(assignment, trial=replace(assignment.trial, cell=cell))


def test_the_digest_of_a_model_covers_its_buffers(tmp_path: Path) -> None:
    """The momentum of batch norm changes no parameter, and the accuracy."""
    digests = []
    for momentum in (0.1, 0.001):
        workload = Points(Settings(), Settings())
        workload.momentum = momentum
        trainer = trained(tmp_path / str(momentum), workload, make_assignment(steps=4))
        digests.append((digest_of(trainer), trainer.state.series["loss"]))
    (first, losses), (second, other_losses) = digests
    assert losses == other_losses
    assert first != second


def test_evaluations_change_nothing_of_training(tmp_path: Path) -> None:
    often = trained(tmp_path / "often", Points(Settings(), Settings()), evaluated_every(2))
    seldom = trained(tmp_path / "seldom", Points(Settings(), Settings()), evaluated_every(12))
    assert often.state.series["loss"] == seldom.state.series["loss"]
    assert digest_of(often) == digest_of(seldom)


class Curriculum(Points):
    """Has a weight for each step, and none for a step more."""

    def splits(self) -> Splits:
        self.weights: Iterator[float] = iter([1.0] * 4)
        return super().splits()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        weight = next(self.weights) if torch.is_grad_enabled() else 1.0
        return super().loss(model, batch) * weight


def test_a_finished_training_is_not_lost_for_want_of_a_further_pass(tmp_path: Path) -> None:
    """The operations are counted before, in a pass of a copy."""
    workload = Curriculum(Settings(), Settings())
    trainer = trained(tmp_path, workload, make_assignment(steps=4))
    entered = RankResult(rank=0, host="", entered_at=0.0)
    result = worker._result(trainer, entered)
    assert result.rank0 is not None
    assert result.rank0.flops_per_sample == 3 * 2 * (8 * 16 + 16) - 2 * 8 * 16
    assert result.rank0.parameter_digest


class Sparse(Points):
    """Has the sparse gradients of an embedding."""

    def splits(self) -> Splits:
        samples = TensorSamples((torch.arange(128) % 20,))
        return Splits(samples, samples)

    def build_model(self) -> nn.Module:
        return nn.Embedding(20, 4, sparse=True)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SparseAdam(list(model.parameters()), lr=0.05)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = model(batch[0]).square().mean()
        return loss


def test_sparse_gradients_are_traced(tmp_path: Path) -> None:
    trainer = make_trainer(make_assignment(steps=4), Sparse(Settings(), Settings()), tmp_path)
    path = trace_path(tmp_path, 0)
    recording = Recording(last_step=4, values=True)
    with Recorder(trainer.parts, trainer.state, recording) as trainer.hooks:
        trainer.run()
    marks = decode_trace(path.read_bytes(), path)
    assert {mark.step for mark in marks} == {4}
    assert "all-reduce" in {mark.phase for mark in marks}
