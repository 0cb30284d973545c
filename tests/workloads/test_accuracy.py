"""Trains on real data until the stated accuracy is reached, with a plain loop and the default settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from workloads.base import Workload
from workloads.catalog import BUILT_IN, load_class
from workloads.options import Settings
from workloads.sources import Csv, Idx

pytestmark = [pytest.mark.accuracy, pytest.mark.timeout(1800)]


def accuracy(name: str, data: Settings, epochs: int, seed: int) -> float:
    torch.manual_seed(seed)
    workload = load_class(name)(BUILT_IN[name].options(), data)
    train = workload.splits().train
    steps = len(train) // workload.batch_size
    model = workload.build_model()
    optimizer = workload.optimizer(model)
    schedule = workload.schedule(optimizer, epochs * steps)
    for _ in range(epochs):
        order = torch.randperm(len(train)).tolist()
        for step in range(steps):
            rows = order[step * workload.batch_size :][: workload.batch_size]
            optimizer.zero_grad()
            torch.autograd.backward(workload.loss(model, train.batch(rows)))
            optimizer.step()
            if schedule:
                schedule.step()
    return tested(workload, model.eval())


@torch.no_grad()
def tested(workload: Workload, model: torch.nn.Module) -> float:
    test = workload.splits().test
    rows = range(len(test))
    found = [workload.evaluate(model, test.batch(rows[start : start + 256])) for start in rows[::256]]
    return workload.metrics(torch.cat(found))["accuracy"]


def test_mlp(real_data: Path) -> None:
    data = Idx(path=real_data / "mnist10k")
    assert sum(accuracy("mlp", data, epochs=10, seed=seed) for seed in range(3)) / 3 >= 0.95


def test_cnn(real_data: Path) -> None:
    assert accuracy("cnn", Idx(path=real_data / "mnist10k"), epochs=10, seed=0) >= 0.98


def test_distilbert(real_data: Path) -> None:
    assert accuracy("distilbert", Csv(path=real_data / "banking77", label="category"), epochs=15, seed=0) >= 0.85
