"""Scores of classes agree with scikit-learn's."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from harness.analysis.classes import class_scores, join_confusions, matrix, mistakes
from harness.records.record import Confusions, Record
from harness.training.evaluate import count_confusions
from tests.factories import make_record
from workloads.mlp import MLP
from workloads.options import MLPOptions
from workloads.sources import Digits

CLASSES = 6


@pytest.fixture
def sklearn_metrics() -> Any:
    """Return `sklearn.metrics`, which takes a second to import in each process that collects tests."""
    return import_module("sklearn.metrics")


def draw(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and predictions that agree often; no sample is taken for the last class."""
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(CLASSES), rng.integers(0, CLASSES, 200)])
    predicted = np.where(rng.random(len(labels)) < 0.7, labels, rng.integers(0, 5, len(labels)))
    return labels, np.minimum(predicted, CLASSES - 2)


def count(seed: int) -> Confusions:
    labels, predicted = draw(seed)
    rows = torch.tensor(np.stack([np.zeros(len(labels)), predicted, labels], axis=1))
    counted = count_confusions(MLP(MLPOptions(), Digits()), rows)
    assert counted is not None
    return counted


def record_of(confusions: Confusions) -> Record:
    record = make_record()
    assert record.rank0 is not None
    return replace(record, rank0=replace(record.rank0, confusions=confusions))


def test_scores_are_those_of_scikit_learn(sklearn_metrics: Any) -> None:
    labels, predicted = draw(0)
    scores = class_scores(count(0))
    expected = sklearn_metrics.precision_recall_fscore_support(
        labels, predicted, zero_division=np.nan
    )
    for score, precision, recall, f1, support in zip(scores, *expected, strict=True):
        assert (score.recall, score.f1) == pytest.approx((recall, f1))
        assert score.support == support
        if np.isnan(precision):
            assert score.precision is None
        else:
            assert score.precision == pytest.approx(precision)
    assert matrix(count(0)) == sklearn_metrics.confusion_matrix(labels, predicted).tolist()


def test_trials_are_counted_together(sklearn_metrics: Any) -> None:
    joined = join_confusions([record_of(count(0)), record_of(count(1))])
    assert joined is not None
    both = [np.concatenate(parts) for parts in zip(draw(0), draw(1), strict=True)]
    assert matrix(joined) == sklearn_metrics.confusion_matrix(*both).tolist()
    counts = [mistake.count for mistake in mistakes(joined)]
    assert counts == sorted(counts, reverse=True)
    other = replace(count(1), classes=tuple("abcdef"))
    assert join_confusions([record_of(count(0)), record_of(other)]) is None
