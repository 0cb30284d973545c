from __future__ import annotations

import pytest
import torch

from tests.workloads.flops import counted_per_sample
from workloads.images import Digits
from workloads.mlp import MLP
from workloads.mlp_settings import MLPOptions


def test_the_textbook_network() -> None:
    model = MLP(MLPOptions(), Digits()).build_model()
    assert sum(p.numel() for p in model.parameters()) == 235_146


@pytest.mark.parametrize(
    "options", [MLPOptions(), MLPOptions(hidden=(), dropout=0), MLPOptions(batch_norm=True)]
)
def test_flops_agree_with_torchs_counter(options: MLPOptions) -> None:
    workload = MLP(options, Digits())
    assert workload.flops_per_sample() == counted_per_sample(workload, 8)


def test_batch_norm_is_an_option() -> None:
    model = MLP(MLPOptions(batch_norm=True), Digits()).build_model()
    assert sum(isinstance(module, torch.nn.BatchNorm1d) for module in model.modules()) == 2
