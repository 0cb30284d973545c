"""A workload whose metrics lack its target is refused before it trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harness.core.errors import BadInput
from harness.training import build
from tests.support.line import LineFit, Options
from tests.support.training import make_assignment, make_trainer
from workloads import Target
from workloads.settings import Settings


class OtherTarget(LineFit):
    """Is trained towards a metric that it does not compute."""

    target = Target("mse", higher_is_better=False)


class NoMetricsOfTwo(LineFit):
    """Has metrics that are not defined over few samples."""

    def metrics(self, rows: Tensor) -> dict[str, float]:
        if len(rows) < 10:
            raise ValueError("too few rows")
        return super().metrics(rows)


class Frozen(LineFit):
    """Keeps a part of its model out of training mode: one of two dropouts."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.get_submodule("inner.layers").insert(3, nn.Dropout(0.5).eval())  # type: ignore[operator]
        return model


def test_metrics_without_the_target_are_found_before_the_first_step(tmp_path: Path) -> None:
    workload = OtherTarget(Options(), Settings())
    with pytest.raises(
        BadInput,
        match=r"OtherTarget.metrics\(\): found error, samples, checksum; allowed: .* 'mse' among them",
    ):
        make_trainer(make_assignment(steps=2), workload, tmp_path)
    assert workload.step == 0


def test_metrics_that_two_samples_do_not_define_are_no_reason_to_refuse(tmp_path: Path) -> None:
    trainer = make_trainer(
        make_assignment(steps=2), NoMetricsOfTwo(Options(), Settings()), tmp_path
    )
    trainer.run()
    assert trainer.state.evaluations


@pytest.mark.parametrize("kind", [LineFit, Frozen])
def test_looking_changes_nothing_that_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[LineFit]
) -> None:
    parameters = []
    for number, is_checked in enumerate((True, False)):
        if not is_checked:
            monkeypatch.setattr(build, "check_metrics", lambda *_: None)
        workload = kind(Options(dropout=0.5, memory=True, noise=0.1), Settings())
        trainer = make_trainer(make_assignment(steps=5), workload, tmp_path / str(number))
        trainer.run()
        parameters.append([value.detach().clone() for value in trainer.parts.model.parameters()])
    for checked, unchecked in zip(*parameters, strict=True):
        assert torch.equal(checked, unchecked)
