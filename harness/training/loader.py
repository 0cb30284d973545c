"""How samples reach the loop."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from harness.core.errors import NotApplied
from harness.core.processes import wait_for_idle_threads
from harness.spec.axes import Axes
from harness.training.order import BatchOrder
from harness.training.ranks import derive_seed
from workloads.base import Batch, Samples

Fetched = tuple[
    list[int], int, Batch
]  # the samples' indices, the worker that fetched them (-1: none), the batch


class _Numbered:
    """The batches of an order, each with its number since the start of training."""

    def __init__(self, order: BatchOrder) -> None:
        self.order = order

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Any]:
        return enumerate(self.order, self.order.epoch * self.order.steps + self.order.skip)


class _Fetching(Dataset[Any]):
    """Whole batches at once, each with its indices and the worker it came from.

    A worker draws random numbers that depend on the batch, not on who fetches it and how often workers were started.
    """

    def __init__(self, samples: Samples, *stream: int) -> None:
        self.samples, self.stream = samples, stream

    def __getitems__(self, numbered: tuple[int, list[int]]) -> Fetched:
        number, indices = numbered
        worker = get_worker_info()
        if worker is not None:
            _seed(derive_seed(*self.stream, number))
        return indices, -1 if worker is None else worker.id, self.samples.batch(indices)


class _Resident:
    """Batches of samples that all lie on the device."""

    def __init__(self, samples: Samples, order: BatchOrder) -> None:
        self.samples, self.order = samples, order

    def __iter__(self) -> Iterator[Fetched]:
        for indices in self.order:
            yield indices, -1, self.samples.batch(indices)


class _Loader(DataLoader[Any]):
    def __iter__(self) -> Any:
        if self.num_workers and sys.version_info < (3, 12):
            wait_for_idle_threads()
        return super().__iter__()


def make_loader(
    samples: Samples, order: BatchOrder, axes: Axes, *, seed: int, device: torch.device
) -> Iterable[Fetched]:
    """Batches in `order`. Its own generator, so that no setting of it moves the training's random numbers.

    Raises NotApplied for samples that can't be moved to the device.
    """
    if axes.input == "resident":
        move = getattr(samples, "to", None)
        if move is None:
            raise NotApplied(
                f"input: resident was asked for and {type(samples).__name__} has no method to(device)"
            )
        return _Resident(move(device), order)
    return _Loader(
        _Fetching(samples, seed, order.rank),
        batch_sampler=_Numbered(order),
        collate_fn=_as_is,
        num_workers=axes.num_workers,
        prefetch_factor=axes.prefetch_factor if axes.num_workers else None,
        persistent_workers=axes.num_workers > 0 and axes.persistent_workers,
        pin_memory=device.type == "cuda" and axes.pin_memory != "never",
        generator=torch.Generator().manual_seed(derive_seed(seed, order.rank)),
    )


def _as_is(fetched: Any) -> Any:
    return fetched


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes its time to see to GPUs too


def to_device(batch: Batch, device: torch.device) -> Batch:
    if device.type == "cpu" or batch[0].device == device:
        return batch
    return tuple(tensor.to(device, non_blocking=True) for tensor in batch)
