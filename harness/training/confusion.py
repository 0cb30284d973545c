"""Counts what a classifier takes for what, bounded however many classes there are."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from harness.core.errors import NotApplied
from harness.records.record import Confusions
from workloads.base import Workload

MOST_CLASSES = 1000  # that are counted; a record of more would be larger than all else in it
MOST_MISTAKES = 500  # pairs of classes that are listed, the most frequent


def count_confusions(workload: Workload, rows: Tensor) -> Confusions | None:
    """Return how often samples of each class were taken for which, None for no classifier.

    `rows` are those of `Workload.metrics`. None too for more than MOST_CLASSES classes. Raises
    NotApplied for names of classes that are fewer than the classes that occur.
    """
    predictions = workload.predictions(rows)
    if predictions is None or not len(predictions):
        return None
    labels, predicted = predictions[:, 0].numpy(), predictions[:, 1].numpy()
    occurring = int(torch.max(predictions)) + 1
    names = list(workload.class_names()) or [str(number) for number in range(occurring)]
    if len(names) < occurring:
        name = type(workload).__name__
        raise NotApplied(
            f"{name}.class_names(): found {len(names)} names; needed: {occurring}, as of the predictions"
        )
    if len(names) > MOST_CLASSES:
        return None
    is_wrong = labels != predicted
    pairs, counts = np.unique(
        np.stack([labels[is_wrong], predicted[is_wrong]]), axis=1, return_counts=True
    )
    by_frequency = np.argsort(-counts, kind="stable")  # equal counts stay in the order of classes
    listed = by_frequency[:MOST_MISTAKES]
    return Confusions(
        classes=names,
        support=np.bincount(labels, minlength=len(names)).tolist(),
        predicted=np.bincount(predicted, minlength=len(names)).tolist(),
        correct=np.bincount(labels[~is_wrong], minlength=len(names)).tolist(),
        mistakes=np.column_stack([*pairs[:, listed], counts[listed]]).tolist(),
        omitted=int(counts.sum() - counts[listed].sum()),
    )
