"""What a classifier takes for what is counted exactly, and within bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.core.errors import NotApplied
from harness.training import evaluate
from harness.training.evaluate import count_confusions
from tests.support.line import LineFit, Options
from workloads.mlp import MLP
from workloads.options import MLPOptions, Settings
from workloads.sources import Digits


class Named(MLP):
    """A classifier whose classes have names."""

    def class_names(self) -> list[str]:
        return ["cat", "dog", "eel"]


def rows_of(labels: list[int], predicted: list[int]) -> Tensor:
    """Return what a classifier's `evaluate` returns: loss, prediction and label of each sample."""
    losses = [0.0] * len(labels)
    return torch.tensor([losses, predicted, labels], dtype=torch.float64).T


def test_counts_and_mistakes_by_name() -> None:
    rows = rows_of(labels=[0, 0, 0, 1, 1, 1], predicted=[0, 1, 1, 1, 1, 0])
    counted = count_confusions(Named(MLPOptions(), Digits()), rows)
    assert counted is not None
    assert counted.classes == ("cat", "dog", "eel")
    assert (counted.support, counted.predicted, counted.correct) == (
        (3, 3, 0),
        (2, 4, 0),
        (1, 2, 0),
    )
    assert counted.mistakes == ((0, 1, 2), (1, 0, 1))
    assert counted.omitted == 0


def test_the_most_frequent_mistakes_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "MOST_MISTAKES", 10)
    rng = np.random.default_rng(0)
    labels, predicted = rng.integers(0, 77, 3000), rng.integers(0, 77, 3000)
    counted = count_confusions(
        MLP(MLPOptions(), Digits()), rows_of(labels.tolist(), predicted.tolist())
    )
    assert counted is not None
    assert counted.classes == tuple(str(number) for number in range(77))
    counts = [count for _, _, count in counted.mistakes]
    assert len(counts) == 10
    assert counts == sorted(counts, reverse=True)
    assert sum(counted.correct) + sum(counts) + counted.omitted == 3000


def test_what_is_not_counted() -> None:
    many = list(range(evaluate.MOST_CLASSES + 1))
    assert count_confusions(MLP(MLPOptions(), Digits()), rows_of(many, many)) is None
    assert count_confusions(LineFit(Options(), Settings()), torch.zeros(5, 2)) is None


def test_too_few_names_are_refused() -> None:
    with pytest.raises(NotApplied, match=r"Named.class_names\(\): found 3 names; needed: 5"):
        count_confusions(Named(MLPOptions(), Digits()), rows_of([0, 4], [0, 4]))
