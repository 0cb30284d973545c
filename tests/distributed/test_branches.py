"""Ranks that train different parameters in the same step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.running import by_label, line_sweep, run

pytestmark = pytest.mark.distributed

# Each rank's half of a batch asks for one of two experts of the same size.
BRANCHES = """
import torch
from torch import nn
from workloads import Splits, TensorSamples, Workload


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, inputs):
        return self.first(inputs) if inputs.sum() > 0 else self.second(inputs)


class Branches(Workload):
    batch_size = 32

    def splits(self):
        drawn = torch.Generator().manual_seed(0)
        inputs = torch.randn(256, 8, generator=drawn)
        samples = TensorSamples((inputs, inputs[:, :1] * 2))
        return Splits(samples, samples)

    def build_model(self):
        return Experts()

    def loss(self, model, batch):
        return (model(batch[0]) - batch[1]).square().mean()
"""
TWO = {"world_size": 2}


def test_fsdp2_refuses_gradients_of_different_parameters_and_ddp_takes_them(tmp_path: Path) -> None:
    (tmp_path / "branches.py").write_text(BRANCHES, encoding="utf-8")
    uses: dict[str, Any] = {"uses": "branches.py"}
    unused = {"ddp.find_unused_parameters": True}
    entries: dict[str, dict[str, Any]] = {
        "accumulated": uses | {"axes": {"grad_accum_steps": 2}},
        "fsdp2": uses | {"axes": {"strategy": "fsdp2", **TWO}},
        "ddp": uses | {"axes": {"strategy": "ddp", **unused, **TWO}},
    }
    path = line_sweep(tmp_path, entries, length={"steps": 16}, evaluate={"steps": 16})
    records = by_label(run(path))
    failure = records["fsdp2"].failure
    assert failure is not None
    assert failure.kind == "NotApplied"
    assert failure.message.startswith("strategy=fsdp2 is unavailable: in the same step, ranks had")
    assert records["ddp"].failure is None
    expected = records["accumulated"].numbers["final_loss"]
    assert records["ddp"].numbers["final_loss"] == pytest.approx(expected, rel=1e-3)
