"""Samples in many files that are read whole, one after the other, such as archives of a data set."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from workloads.base import Batch

Read = Callable[[Path], Batch]


class ShardSamples:
    """Samples in shards, of which this process has a few in memory at a time.

    Each epoch draws another order of the shards, takes `window` of them at a time, and shuffles
    the samples of a window. Every rank and every loader worker reads each shard once in an
    epoch, whatever share of its samples it trains on: that is the price of the same global batches
    at any number of ranks. A trial that is resumed begins with the window that it was in.
    """

    reads_files = True  # while training

    def __init__(
        self,
        paths: Sequence[Path],
        sizes: Sequence[int],
        read: Read,
        window: int = 2,
        transform: Callable[[Batch], Batch] | None = None,
    ) -> None:
        """Take `sizes[i]` samples from `paths[i]`, which `read` returns as tensors of that length.

        More shards in a window shuffle better, and take more memory. `transform` makes a batch of
        what was read, so that shards may be in memory in fewer bytes. Raises ValueError without
        shards, and for shards and sizes of different numbers.
        """
        if not paths or len(paths) != len(sizes):
            raise ValueError(
                f"shards: found {len(paths)} files and {len(sizes)} sizes; allowed: one size for"
                " each of one or more files"
            )
        if window < 1:
            raise ValueError(f"window: found {window}; allowed: 1 or more shards")
        self.paths = tuple(paths)
        self.sizes = tuple(sizes)
        self.window = window
        self._read = read
        self._transform = transform
        self._ends = np.cumsum(self.sizes)
        self._loaded: OrderedDict[int, Batch] = OrderedDict()  # by number; the last used is last

    def __reduce__(self) -> tuple[Any, ...]:
        """Have pickle leave out the shards in memory, which are no state of a training."""
        return type(self), (self.paths, self.sizes, self._read, self.window, self._transform)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return the samples at `indices`; reads the shards that are not in memory."""
        rows = np.asarray(indices, dtype=np.int64)
        shards = np.searchsorted(self._ends, rows, side="right")
        parts: list[Batch] = []
        positions = []
        # Those that are in memory come first, before the others take their room.
        in_order = sorted(np.unique(shards).tolist(), key=lambda shard: shard not in self._loaded)
        for shard in in_order:
            (in_shard,) = np.nonzero(shards == shard)
            offsets = torch.from_numpy(rows[in_shard] - self._start(shard))
            parts.append(tuple(tensor[offsets] for tensor in self._load(shard)))
            positions.append(in_shard)
        # Where each sample of the batch is among the parts, one after the other.
        back = torch.from_numpy(np.argsort(np.concatenate(positions)))
        batch = tuple(torch.cat(tensors)[back] for tensors in zip(*parts, strict=True))
        return batch if self._transform is None else self._transform(batch)

    def _start(self, shard: int) -> int:
        """Return the number of the first sample of a shard."""
        return int(self._ends[shard]) - self.sizes[shard]

    def _load(self, shard: int) -> Batch:
        """Return the samples of a shard; raises ValueError for one that is not of its size."""
        if shard in self._loaded:
            self._loaded.move_to_end(shard)
            return self._loaded[shard]
        while len(self._loaded) >= self.window:
            self._loaded.popitem(last=False)
        tensors = self._read(self.paths[shard])
        for tensor in tensors:
            if len(tensor) != self.sizes[shard]:
                raise ValueError(
                    f"{self.paths[shard]}: found {len(tensor)} samples; allowed: the"
                    f" {self.sizes[shard]} of its size"
                )
        self._loaded[shard] = tensors
        return tensors
