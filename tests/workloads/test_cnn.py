from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.workloads.flops import counted_per_sample
from workloads.base import TensorSamples
from workloads.cnn import CNN
from workloads.cnn_settings import CNNOptions
from workloads.images import Digits, Idx


@pytest.mark.parametrize("options", [CNNOptions(), CNNOptions(width=6, batch_norm=True)])
def test_flops_agree_with_torchs_counter(options: CNNOptions) -> None:
    workload = CNN(options, Digits())
    assert workload.flops_per_sample() == counted_per_sample(workload, 4)


@pytest.mark.parametrize("size", [(28, 28), (32, 32), (33, 61), (96, 64), (224, 224)])
def test_images_of_any_size(size: tuple[int, int]) -> None:
    images = torch.randn(2, 1, *size)
    workload = CNN(CNNOptions(width=2), Idx(path=Path()))
    samples = TensorSamples((images, torch.tensor([0, 1])))
    workload.samples = {"train": samples, "test": samples}
    assert workload.build_model()(images).shape == (2, 10)
    assert workload.flops_per_sample() == counted_per_sample(workload, 2)


def test_parameters() -> None:
    model = CNN(CNNOptions(), Digits()).build_model()
    assert sum(p.numel() for p in model.parameters()) == 215_370
