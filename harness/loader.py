"""How samples reach the loop."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, get_worker_info

from harness.dist import derive_seed
from harness.order import BatchOrder
from workloads.base import Batch, Samples

Fetched = tuple[
    NDArray[np.int64], int, Batch
]  # the samples' indices, the worker that fetched them (-1: none), the batch


class _Fetching(Dataset[Any]):
    """Whole batches at once, each with its indices and the worker it came from."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __getitems__(self, indices: list[int]) -> Fetched:
        worker = get_worker_info()
        return np.asarray(indices), -1 if worker is None else worker.id, self.samples.batch(indices)


def make_loader(
    samples: Samples, order: BatchOrder, *, workers: int, seed: int, device: torch.device
) -> DataLoader[Any]:
    """Batches in `order`. Its own generator, so that no setting of it moves the training's random numbers."""
    return DataLoader(
        _Fetching(samples),
        batch_sampler=order,
        collate_fn=_as_is,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=device.type == "cuda",
        worker_init_fn=_seed_worker,
        generator=torch.Generator().manual_seed(derive_seed(seed, order.rank)),
    )


def _as_is(fetched: Any) -> Any:
    return fetched


def _seed_worker(worker: int) -> None:
    seed = torch.initial_seed()  # the loader gave torch the worker's own
    random.seed(seed)
    np.random.seed(seed % 2**32)


def to_device(batch: Batch, device: torch.device) -> Batch:
    return batch if device.type == "cpu" else tuple(tensor.to(device, non_blocking=True) for tensor in batch)
