"""fp64 as a precision: the same training as in fp32, in double precision throughout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.support.training import make_assignment, make_trainer
from workloads.cnn import CNN
from workloads.cnn_settings import CNNOptions
from workloads.images import Digits


def test_parameters_buffers_inputs_and_the_optimizers_state_are_double(tmp_path: Path) -> None:
    workload = CNN(CNNOptions(width=4), Digits())  # which has running means and counters
    assignment = make_assignment(steps=4, precision="fp64")
    trainer = make_trainer(assignment, workload, tmp_path)
    inputs: list[Tensor] = []

    def note_inputs(moment: str, micro_step: int, value: Any) -> None:
        if moment == "batch":
            inputs.extend(value)

    trainer.parts.train_step.observe = note_inputs
    trainer.run()
    tensors = [*trainer.parts.model.parameters(), *trainer.parts.model.buffers()]
    for state in trainer.parts.optimizer.state.values():
        tensors += [value for key, value in state.items() if key != "step"]
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    assert {tensor.dtype for tensor in floats} == {torch.float64}
    assert {tensor.dtype for tensor in inputs} == {torch.float64, torch.int64}
    assert trainer.state.evaluations[0].metrics["loss"] > 0
