"""Which samples make up which global batch, and the digest that proves it. Imports no torch.

Trials can be compared across strategies and numbers of ranks only if they trained on the same
samples in the same order, in global batches of the same size. The order makes sure of it, and the
digest is the evidence in each record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.core.errors import BadInput

Indices = NDArray[np.int64]  # of samples


@dataclass(kw_only=True)
class BatchOrder:
    """This rank's share of each global batch of an epoch, as indices of training samples.

    The global order depends on seed, epoch and global batch size only, so that every rank and every
    attempt computes the same. An epoch is a permutation of the samples, or has them as they come
    (`in_order`), cut into global batches, of which an incomplete last one is dropped. Each batch is
    cut into equal shares for the data-parallel ranks. So the same samples make up the same batches
    at any number of ranks.

    A rank's share is one piece of the batch, or with several `micro_steps` one piece for each: of n
    ranks, rank r has the pieces r, n + r, 2n + r, ...
    """

    samples: int
    batch_size: int  # over all ranks
    seed: int
    dp_rank: int
    dp_size: int
    micro_steps: int = 1
    in_order: bool = False
    epoch: int = 0  # the epoch to iterate over
    skip: int = 0  # batches at its start that are left out

    def __post_init__(self) -> None:
        """Raise BadInput if there is less than one global batch of samples."""
        if self.samples < self.batch_size:
            raise BadInput(
                f"batch_size: found {self.batch_size}; allowed: at most the {self.samples} training"
                " samples"
            )
        pieces = np.arange(self.batch_size).reshape(self.micro_steps, self.dp_size, -1)
        # Of this rank's share in a global batch, in the rank's order, shape (share,).
        self.positions = pieces[:, self.dp_rank].reshape(-1)
        self.steps = self.samples // self.batch_size  # in an epoch

    def seek(self, step: int) -> None:
        """Have the next iteration begin with the batch of `step`.

        Steps are counted from 0 over all epochs.
        """
        self.epoch, self.skip = divmod(step, self.steps)

    @property
    def next_step(self) -> int:
        """Return the step that the next iteration begins with, as `seek` counts them."""
        return self.epoch * self.steps + self.skip

    def __iter__(self) -> Iterator[Indices]:
        """Yield this rank's share of each batch until the end of the epoch, shape (share,)."""
        permutation: Indices | None = None
        if not self.in_order:
            permutation = np.random.default_rng([self.seed, self.epoch]).permutation(self.samples)
        for step in range(self.skip, self.steps):
            positions = step * self.batch_size + self.positions
            yield positions if permutation is None else permutation[positions]


@dataclass
class OrderDigest:
    """A digest of which sample was at which position of the sequence of global batches.

    Every pair of position and sample is hashed to 64 bits (splitmix64; Steele, Lea and Flood 2014),
    twice with different constants, and the hashes are added modulo 2^64. Addition commutes, so the
    sums of all ranks add up to a digest that does not depend on how many ranks there were.
    """

    sums: tuple[int, int] = (0, 0)  # of this rank's share, for either constant

    def add(self, order: BatchOrder, start_step: int, batches: Sequence[Indices]) -> None:
        """Add this rank's share of consecutive batches, which begin with that of `start_step`.

        `batches` has the indices of the samples, shape (steps, samples of a share).
        """
        if not batches:
            return
        samples = np.asarray(batches, dtype=np.uint64)  # shape (steps, share)
        steps = np.arange(start_step, start_step + len(samples), dtype=np.uint64)[:, None]
        offsets = order.positions.astype(np.uint64)
        positions = steps * np.uint64(order.batch_size) + offsets
        low = _sum_hashes(positions, samples, np.uint64(1))
        high = _sum_hashes(positions, samples, np.uint64(2**63))
        self.sums = ((self.sums[0] + low) % 2**64, (self.sums[1] + high) % 2**64)


def _sum_hashes(
    positions: NDArray[np.uint64], samples: NDArray[np.uint64], constant: np.uint64
) -> int:
    """Return the sum modulo 2^64 of a hash of each pair of position and sample."""
    hashes = splitmix64(splitmix64(positions + constant) ^ samples)
    return int(hashes.sum(dtype=np.uint64))


def join_digests(sums: Sequence[Sequence[int]]) -> str:
    """Return the digest of the global order, 32 hexadecimal digits, from the sums of all ranks."""
    low = sum(rank_sums[0] for rank_sums in sums) % 2**64
    high = sum(rank_sums[1] for rank_sums in sums) % 2**64
    return f"{low:016x}{high:016x}"


def splitmix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the output function of splitmix64, element by element (Steele, Lea and Flood 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
