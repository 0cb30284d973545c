"""Takes the samples of a workload from torch's Datasets, and says what to write instead of a DataLoader."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

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
        fetch_all = getattr(
            self._dataset, "__getitems__", None
        )  # torch's way to fetch many at once
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
            f"collate_fn(): found {_described(batch)}; allowed: a tensor or a tuple of tensors, as of"
            " a method collate_fn(self, samples) of the workload"
        )


def load_splits(workload: Workload) -> Splits:
    """Return the samples of a workload, those of Datasets made into batches by its `collate_fn`.

    Raises TypeError for a DataLoader, and for anything else that has no samples by index.
    """
    splits: Any = workload.splits()
    if not isinstance(splits, Splits):
        _check_dataset(workload, "", splits)
        count = len(splits)
        # Drawn, because every tenth sample may be of one class, or a neighbor of those before it.
        drawn = random.Random(SPLIT_SEED).sample(range(count), max(1, round(TEST_SHARE * count)))
        test = sorted(drawn)
        train = sorted(set(range(count)).difference(drawn))
        collate = workload.collate_fn
        return Splits(DatasetSamples(splits, collate, train), DatasetSamples(splits, collate, test))
    adapted: dict[str, Samples | None] = {}
    for entry in fields(Splits):
        samples: Any = getattr(splits, entry.name)
        if samples is not None and not hasattr(samples, "batch"):
            _check_dataset(workload, entry.name, samples)
            samples = DatasetSamples(samples, workload.collate_fn, range(len(samples)))
        adapted[entry.name] = samples
    if all(adapted[entry.name] is getattr(splits, entry.name) for entry in fields(Splits)):
        return splits
    return Splits(**adapted)  # type: ignore[arg-type]


def _check_dataset(workload: Workload, name: str, found: Any) -> None:
    """Raise TypeError unless `found` is a map-style Dataset; `name` is its field of `Splits`."""
    of = f" for {name}" if name else ""
    where = f"{type(workload).__name__}.splits(): found {_described(found)}{of}"
    if isinstance(found, DataLoader):
        raise TypeError(f"{where}; {_line_instead(found)}")
    if isinstance(found, IterableDataset) or not isinstance(found, Dataset):
        # Not every Dataset derives from torch's, such as those of the Hub.
        has_samples = hasattr(found, "__getitem__") and hasattr(found, "__len__")
        if isinstance(found, IterableDataset | list | tuple | dict) or not has_samples:
            raise TypeError(
                f"{where}; allowed: Splits(train, test) of Datasets with a length, or of samples such"
                " as TensorSamples or StreamSamples"
            )
    if not hasattr(found, "__len__"):
        raise TypeError(f"{where} without a length; allowed: one with __len__")


def _line_instead(loader: DataLoader[Any]) -> str:
    """Return what to write for a DataLoader, whose batches and order are the harness's to make."""
    line = "write its `.dataset` there, as in `Splits(train_loader.dataset, test_loader.dataset)`"
    if loader.batch_size is not None:
        line += f", and `batch_size = {loader.batch_size}` in the class"
    collate = loader.collate_fn
    name = getattr(collate, "__name__", type(collate).__name__)
    if name != "default_collate":
        line += f", and `collate_fn = staticmethod({name})`"
    sampler = loader.sampler
    if not isinstance(sampler, SequentialSampler | RandomSampler):
        line += (
            f"; its {type(sampler).__name__} is dropped with it: repeat or leave out samples in the"
            " Dataset instead"
        )
    return f"{line}: the harness makes the batches"


def _described(value: Any) -> str:
    """Return the kind of a value for errors, as in `a DataLoader` and `a dict of input_ids, labels`."""
    kind = type(value).__name__
    article = "an" if kind[:1] in "AEIOUaeiou" else "a"
    if isinstance(value, dict):
        return f"{article} {kind} of {', '.join(map(str, value)) or 'nothing'}"
    if isinstance(value, list | tuple):
        kinds = dict.fromkeys(type(part).__name__ for part in value)
        return f"{article} {kind} of {', '.join(kinds) or 'nothing'}"
    return f"{article} {kind}"
