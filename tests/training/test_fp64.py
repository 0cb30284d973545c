"""fp64 as a precision: the same training as in fp32, in double precision throughout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.training.train import Hooks, Trainer
from tests.support.training import NoEvaluation, make_assignment, make_trainer
from workloads.base import Workload
from workloads.cnn import CNN
from workloads.cnn_settings import CNNOptions
from workloads.images import Digits
from workloads.mlp import MLP
from workloads.mlp_settings import MLPOptions


class RandomStates:
    """Notes torch's random state before each forward."""

    def __init__(self) -> None:
        self.states: list[Tensor] = []
        self.dtypes: set[torch.dtype] = set()

    def __call__(self, moment: str, micro_step: int, value: Any) -> None:
        if moment == "batch":
            self.states.append(torch.get_rng_state())
            self.dtypes.update(tensor.dtype for tensor in value)


def cnn() -> CNN:
    """Return a small network with buffers: running means and counters."""
    return CNN(CNNOptions(width=4), Digits())


def trainer_of(folder: Path, workload: Workload, **axes: Any) -> Trainer:
    """Return a trial of four steps, ready to be run."""
    hooks = NoEvaluation()
    return make_trainer(make_assignment(steps=4, **axes), workload, folder, hooks=hooks)


def test_parameters_buffers_inputs_and_the_optimizers_state_are_double(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, cnn(), precision="fp64")
    observer = RandomStates()
    trainer.parts.train_step.observe = observer
    trainer.run()
    tensors = [*trainer.parts.model.parameters(), *trainer.parts.model.buffers()]
    for state in trainer.parts.optimizer.state.values():
        tensors += [value for key, value in state.items() if key != "step"]
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    assert {tensor.dtype for tensor in floats} == {torch.float64}
    assert observer.dtypes == {torch.float64, torch.int64}
    trainer.hooks = Hooks()
    trainer.evaluate()
    assert trainer.state.evaluations[0].metrics["loss"] > 0


def test_it_begins_and_draws_as_fp32_does_and_stays_near(tmp_path: Path) -> None:
    """Of a model with dropout, whose masks must be the same for the two to be comparable."""
    workload = MLP(MLPOptions(dropout=0.5), Digits())
    trainers, states = [], []
    for precision in ("fp32", "fp64"):
        trainer = trainer_of(tmp_path / precision, workload, precision=precision)
        observer = RandomStates()
        trainer.parts.train_step.observe = observer
        trainers.append(trainer)
        states.append(observer.states)
    single, double = (list(trainer.parts.model.parameters()) for trainer in trainers)
    for a, b in zip(single, double, strict=True):
        assert torch.equal(a.double(), b)
    for trainer in trainers:  # one after the other would do, if they did not share generators
        torch.manual_seed(1)
        trainer.run()
    assert all(map(torch.equal, *states))
    gaps = [(a.double() - b).abs().max().item() for a, b in zip(single, double, strict=True)]
    assert 0 < max(gaps) < 1e-5
