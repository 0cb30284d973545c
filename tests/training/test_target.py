"""A workload whose metrics lack its target is refused before it trains."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from harness.core.errors import BadInput
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
