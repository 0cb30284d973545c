"""The order of an epoch's samples: drawn in memory, or as they come.

An order says which sample is at a position of an epoch. It follows from seed and epoch, so that
every rank and every attempt computes the same, and none of them has to hear of it from another.
Imports no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
# Returns the samples at some positions of an epoch; both have the same shape.
Lookup = Callable[[Indices], Indices]


class EpochOrder(ABC):
    """Which sample is at which position, in any epoch."""

    @abstractmethod
    def of_epoch(self, seed: int, epoch: int) -> Lookup:
        """Return the order of one epoch."""


class Permutation(EpochOrder):
    """A permutation of all samples, drawn for each epoch and held in memory."""

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


class InOrder(EpochOrder):
    """The samples as they come, for those that can only be read one after the other."""

    def of_epoch(self, seed: int, epoch: int) -> Lookup:
        """Return the identity."""
        return lambda positions: positions
