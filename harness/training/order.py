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
CONSTANTS = (np.uint64(1), np.uint64(2**63))  # of the two hashes of a digest


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
    # With whose batch the next iteration begins, counted from 0 over all epochs.
    next_step: int = 0

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

    def seek_next_epoch(self) -> None:
        """Have the next iteration begin with the epoch after that of `next_step`."""
        self.next_step += self.steps - self.next_step % self.steps

    def __iter__(self) -> Iterator[Indices]:
        """Yield this rank's share of each batch until the end of the epoch, shape (share,)."""
        epoch, first = divmod(self.next_step, self.steps)
        permutation: Indices | None = None
        if not self.in_order:
            permutation = np.random.default_rng([self.seed, epoch]).permutation(self.samples)
        for step in range(first, self.steps):
            positions = step * self.batch_size + self.positions
            yield positions if permutation is None else permutation[positions]


def add_to_digest(
    sums: Sequence[int], order: BatchOrder, start_step: int, batches: Sequence[Indices]
) -> list[int]:
    """Return the sums of a rank's digest with its share of further, consecutive batches.

    The digest is of which sample was at which position of the sequence of global batches. Every pair of
    position and sample is hashed to 64 bits (splitmix64; Steele, Lea and Flood 2014), with each of
    CONSTANTS, and the hashes are added modulo 2^64. Addition commutes, so the sums of all ranks add up to a
    digest that does not depend on how many ranks there were.

    `batches` has the indices of the samples, shape (steps, samples of a share), from `start_step` on.
    """
    samples = np.asarray(batches, dtype=np.uint64)  # shape (steps, share)
    steps = np.arange(start_step, start_step + len(samples), dtype=np.uint64)[:, None]
    positions = steps * np.uint64(order.batch_size) + order.positions.astype(np.uint64)
    added = []
    for total, constant in zip(sums, CONSTANTS, strict=True):
        hashes = splitmix64(splitmix64(positions + constant) ^ samples)
        added.append((total + int(hashes.sum(dtype=np.uint64))) % 2**64)
    return added


def join_digests(sums: Sequence[Sequence[int]]) -> str:
    """Return the digest of the global order, 32 hexadecimal digits, from the sums of all ranks."""
    low, high = (sum(of_ranks) % 2**64 for of_ranks in zip(*sums, strict=True))
    return f"{low:016x}{high:016x}"


def splitmix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the output function of splitmix64, element by element (Steele, Lea and Flood 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
