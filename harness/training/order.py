"""Which samples make which global batch, and the digest that proves it. Knows no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.core.errors import BadInput


class BatchOrder:
    """This rank's part of each global batch of an epoch.

    The global order depends on seed, epoch and global batch size only: an epoch is one permutation, cut into global
    batches (an incomplete last one is dropped), each cut into equal parts by rank.
    """

    def __init__(
        self, *, samples: int, batch_size: int, seed: int, rank: int, world_size: int
    ) -> None:
        if samples < batch_size:
            raise BadInput(
                f"batch_size: found {batch_size}; allowed: at most the {samples} training samples"
            )
        self.samples, self.batch_size, self.seed = samples, batch_size, seed
        self.rank, self.world_size = rank, world_size
        self.steps = samples // batch_size  # in an epoch
        self.epoch, self.skip = 0, 0

    def __len__(self) -> int:
        return self.steps - self.skip

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.samples)
        share = self.batch_size // self.world_size
        mine = slice(self.rank * share, (self.rank + 1) * share)
        for step in range(self.skip, self.steps):
            yield order[step * self.batch_size : (step + 1) * self.batch_size][mine].tolist()


class OrderDigest:
    """A digest of which sample stood where in the sequence of global batches.

    Every pair of position and sample is mixed into 64 bits (splitmix64, Steele et al. 2014) twice and the results are
    added, so that ranks sum up their parts to a digest which knows nothing of how many they were.
    """

    def __init__(self, order: BatchOrder) -> None:
        self.order = order
        self.sums = (0, 0)

    def add(self, first_step: int, batches: Sequence[Sequence[int]]) -> None:
        """The samples that this rank trained on in consecutive steps."""
        if not batches:
            return
        samples = np.asarray(batches, dtype=np.uint64)
        share = samples.shape[1]
        steps = np.arange(first_step, first_step + len(batches), dtype=np.uint64)[:, None]
        offset = np.arange(share, dtype=np.uint64) + np.uint64(self.order.rank * share)
        positions = steps * np.uint64(self.order.batch_size) + offset
        mixed = (_mix(_mix(positions + np.uint64(lane)) ^ samples) for lane in (1, 2**63))
        first, second = (int(lane.sum(dtype=np.uint64)) for lane in mixed)
        self.sums = ((self.sums[0] + first) % 2**64, (self.sums[1] + second) % 2**64)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def join_digests(sums: Sequence[Sequence[int]]) -> str:
    """The digest of the global order, 32 hexadecimal digits, from every rank's sums."""
    first, second = (sum(part[lane] for part in sums) % 2**64 for lane in (0, 1))
    return f"{first:016x}{second:016x}"
