"""The MLP and the CNN, and the schedule that all workloads share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.workloads.flops import counted_per_sample
from workloads.base import TensorSamples, Workload
from workloads.cnn import CNN
from workloads.cnn_settings import CNNOptions
from workloads.images import Digits, Idx
from workloads.mlp import MLP
from workloads.mlp_settings import MLPOptions
from workloads.schedules import one_cycle


@pytest.mark.parametrize(
    ("workload", "parameters"),
    [(MLP(MLPOptions(), Digits()), 235_146), (CNN(CNNOptions(), Digits()), 215_370)],
)
def test_parameters_of_the_textbooks_networks(workload: Workload, parameters: int) -> None:
    assert sum(p.numel() for p in workload.build_model().parameters()) == parameters


@pytest.mark.parametrize(
    "workload",
    [
        MLP(MLPOptions(), Digits()),
        MLP(MLPOptions(hidden=(), dropout=0), Digits()),
        MLP(MLPOptions(batch_norm=True), Digits()),
        CNN(CNNOptions(), Digits()),
        CNN(CNNOptions(width=6, batch_norm=True), Digits()),
    ],
)
def test_flops_agree_with_torchs_counter(workload: Workload) -> None:
    assert workload.flops_per_sample() == counted_per_sample(workload, 4)


@pytest.mark.parametrize("size", [(28, 28), (33, 61), (96, 64), (224, 224)])
def test_images_of_any_size(size: tuple[int, int]) -> None:
    images = torch.randn(2, 1, *size)
    workload = CNN(CNNOptions(width=2), Idx(path=Path()))
    samples = TensorSamples((images, torch.tensor([0, 1])))
    workload.samples = {"train": samples, "test": samples}
    assert workload.build_model()(images).shape == (2, 10)
    assert workload.flops_per_sample() == counted_per_sample(workload, 2)


def test_batch_norm_is_an_option() -> None:
    model = MLP(MLPOptions(batch_norm=True), Digits()).build_model()
    assert sum(isinstance(module, torch.nn.BatchNorm1d) for module in model.modules()) == 2


def rates(steps: int, warmup: float) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = one_cycle(optimizer, steps, warmup)
    used = []
    for _ in range(steps):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return used


def test_rates_rise_to_the_peak_and_fall_and_the_first_step_learns() -> None:
    used = rates(100, 0.2)
    assert used[:20] == pytest.approx([2 * (i + 1) / 20 for i in range(20)])
    assert used[20:] == sorted(used[20:], reverse=True)
    assert used[-1] == pytest.approx(0, abs=1e-12)
    assert min(rates(steps, 0.1)[0] for steps in range(1, 25)) > 0
