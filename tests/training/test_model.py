"""Modules train in the modes that the workload has built them with, whatever happens meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from harness.core.errors import NotApplied
from harness.sweep.cell import Length
from harness.training.model import check_training_mode
from harness.training.train import Trainer
from tests.support.frozen import EvaluatingFit, FrozenFit, FrozenOptions
from tests.support.line import Options
from tests.support.training import NoEvaluation, digest_of, make_assignment, make_trainer
from workloads.settings import Settings

STEPS = 24


def frozen_trainer(folder: Path, *, evaluate_every: int) -> Trainer:
    """Build a trial of a frozen encoder that is evaluated every so many steps."""
    assignment = make_assignment(steps=STEPS)
    cell = replace(assignment.trial.cell, evaluate=Length(steps=evaluate_every))
    assignment = replace(assignment, trial=replace(assignment.trial, cell=cell))
    workload = FrozenFit(FrozenOptions(dropout=0.2), Settings())
    return make_trainer(assignment, workload, folder)


def modes_of(model: nn.Module) -> dict[str, bool]:
    """Return whether each module is in training mode, by its name."""
    return {name: module.training for name, module in model.named_modules()}


def test_evaluations_change_neither_modes_nor_what_is_trained(tmp_path: Path) -> None:
    trained = []
    for number, evaluate_every in enumerate((2, 5, STEPS)):
        trainer = frozen_trainer(tmp_path / str(number), evaluate_every=evaluate_every)
        built_with = modes_of(trainer.parts.model)
        trainer.run()
        assert modes_of(trainer.parts.model) == built_with
        assert not built_with["encoder.1"]
        assert built_with["head.0"]
        trained.append((trainer.state.series["loss"], digest_of(trainer)))
    assert trained[0] == trained[1] == trained[2]


def test_a_model_in_evaluation_mode_is_refused_before_the_first_step(tmp_path: Path) -> None:
    workload = EvaluatingFit(Options(dropout=0.5), Settings())
    with pytest.raises(
        NotApplied,
        match=r"^EvaluatingFit: found a model in evaluation mode.*; needed: model.train\(\) in build_m",
    ):
        make_trainer(make_assignment(steps=1), workload, tmp_path, hooks=NoEvaluation())
    assert workload.step == 0


def test_a_head_may_be_trained_on_an_encoder_in_evaluation_mode() -> None:
    workload = FrozenFit(FrozenOptions(dropout=0.0), Settings())
    check_training_mode(workload, workload.build_model())
