"""The order of an epoch's samples: drawn in memory, computed index by index, or as they come.

An order says which sample is at a position of an epoch. It follows from seed and epoch, so that
every rank and every attempt computes the same, and none of them has to hear of it from another.
Imports no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from harness.records.record import SampleOrder
from harness.training.bijection import KeyedBijection

Indices = NDArray[np.int64]
# Returns the samples at some positions of an epoch; both have the same shape.
Lookup = Callable[[Indices], Indices]


class EpochOrder(ABC):
    """Which sample is at which position, in any epoch."""

    name: ClassVar[SampleOrder]  # as in records

    @abstractmethod
    def of_epoch(self, seed: int, epoch: int) -> Lookup:
        """Return the order of one epoch."""


class Permutation(EpochOrder):
    """A permutation of all samples, drawn for each epoch and held in memory."""

    name = "permutation"

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def of_epoch(self, seed: int, epoch: int) -> Lookup:
        """Return a lookup in a permutation of 8 bytes a sample."""
        permutation = np.random.default_rng([seed, epoch]).permutation(self._samples)

        def samples_at(positions: Indices) -> Indices:
            """Return the entries of the permutation."""
            samples: Indices = permutation[positions]
            return samples

        return samples_at


class Keyed(EpochOrder):
    """A bijection with a key for each epoch, which takes no memory."""

    name = "keyed"

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def of_epoch(self, seed: int, epoch: int) -> Lookup:
        """Return the bijection of an epoch."""
        return KeyedBijection(self._samples, _key(seed, epoch))


class InOrder(EpochOrder):
    """The samples as they come, for those that can only be read one after the other."""

    name = "stream"

    def of_epoch(self, seed: int, epoch: int) -> Lookup:
        """Return the identity."""
        return lambda positions: positions


def _key(*numbers: int) -> int:
    """Return 64 bits that depend on all the numbers; those of other numbers are independent."""
    (key,) = np.random.SeedSequence(numbers).generate_state(1, np.uint64)
    return int(key)
