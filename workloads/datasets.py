"""Takes the samples of a workload from torch's Datasets."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from workloads.base import Batch, Samples, Splits, Workload

TEST_SHARE = 0.1  # of a single data set, which is kept for testing
SPLIT_SEED = 0


class DatasetSamples:
    """Samples of a map-style Dataset, made into batches by a collate function."""

    def __init__(
        self, dataset: Any, collate: Callable[[Sequence[Any]], Any], rows: Sequence[int]
    ) -> None:
        """Take those samples of `dataset` whose indices are `rows`."""
        self._dataset = dataset
        self._collate = collate
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def batch(
        self, indices: Sequence[int], before_sample: Callable[[int], None] | None = None
    ) -> Batch:
        """Return the samples at `indices`, in that order; raises TypeError if they make no tensors.

        `before_sample` is called with the index of each sample that is fetched by itself.
        """
        # torch's way to fetch many at once
        fetch_all = getattr(self._dataset, "__getitems__", None)
        if fetch_all:
            samples = fetch_all([self._rows[index] for index in indices])
        else:
            samples = []
            for index in indices:
                if before_sample is not None:
                    before_sample(int(index))
                samples.append(self._dataset[self._rows[index]])
        batch = self._collate(samples)
        if isinstance(batch, Tensor):
            return (batch,)
        if isinstance(batch, list | tuple) and all(isinstance(part, Tensor) for part in batch):
            return tuple(batch)
        raise TypeError(
            f"collate_fn(): found a {type(batch).__name__}; allowed: a tensor or a tuple of tensors, as of"
            " a method collate_fn(self, samples) of the workload"
        )


def load_splits(workload: Workload) -> Splits:
    """Return the samples of a workload, those of Datasets made into batches by its `collate_fn`.

    Raises TypeError for a DataLoader, and for anything else that has no samples by index.
    """
    splits: Any = workload.splits()
    if not isinstance(splits, Splits):
        _check_dataset(workload, splits)
        count = len(splits)
        # Drawn, because every tenth sample may be of one class, or a neighbor of those before it.
        drawn = random.Random(SPLIT_SEED).sample(range(count), max(1, round(TEST_SHARE * count)))
        test = sorted(drawn)
        train = sorted(set(range(count)).difference(drawn))
        collate = workload.collate_fn
        return Splits(DatasetSamples(splits, collate, train), DatasetSamples(splits, collate, test))
    adapted: dict[str, Samples] = {}
    for entry in fields(Splits):
        samples: Any = getattr(splits, entry.name)
        if samples is not None and not hasattr(samples, "batch"):
            _check_dataset(workload, samples)
            samples = DatasetSamples(samples, workload.collate_fn, range(len(samples)))
        adapted[entry.name] = samples
    return Splits(**adapted)


def _check_dataset(workload: Workload, found: Any) -> None:
    """Raise TypeError unless `found` has samples by index and a length."""
    # Not every Dataset derives from torch's, such as those of the Hub.
    has_samples = hasattr(found, "__getitem__") and hasattr(found, "__len__")
    if isinstance(found, DataLoader | IterableDataset | list | tuple | dict) or not has_samples:
        raise TypeError(
            f"{type(workload).__name__}.splits(): found a {type(found).__name__}; allowed: Splits(train, test)"
            " of Datasets with a length, such as the `.dataset` of a DataLoader, or of samples such as"
            " TensorSamples or StreamSamples; the harness makes the batches"
        )
