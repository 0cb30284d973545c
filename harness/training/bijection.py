"""Shuffles an index range without holding it: a keyed bijection, computed index by index.

A permutation of 10^9 samples takes 8 GB at every rank and half a minute in every epoch. Here, an
index is encrypted instead: by a Feistel network over the range (Black and Rogaway 2002, "Ciphers
with Arbitrary Finite Domains", methods 2 and 3: cycle walking and the generalized Feistel cipher).
Mitchell et al. 2021 (arXiv:2106.06161) shuffle on GPUs in this way.
"""

from __future__ import annotations

from math import isqrt

import numpy as np
from numpy.typing import NDArray

# With four rounds of ideal functions a large range can't be told from a random permutation (Luby
# and Rackoff 1988); twice as many are a margin.
ROUNDS = 8
# A few samples need more, until each of their permutations is as likely as any: of five, some are
# twice as likely as others after 8 rounds.
SMALL_SIZE, SMALL_ROUNDS = 4096, 20
HALF = np.uint64(32)  # bits
UInt64s = NDArray[np.uint64]


class KeyedBijection:
    """A bijection of 0, ..., size - 1 onto itself that follows from a key.

    An index is a pair (left, right) with left below `columns` and right below `rows`, both about
    the root of the size. Each round adds to one half a random number that follows from the other,
    modulo the half's range. That can be undone, so all rounds together are a bijection of columns x
    rows, whatever the key. These are at most a root more than the size; what ends beyond the size
    is encrypted again, until it ends within.
    """

    def __init__(self, size: int, key: int) -> None:
        """Raise ValueError for a size of 2^62 or more; `key` is any number of 64 bits."""
        if not 1 <= size < 2**62:
            raise ValueError(f"size: found {size}; allowed: 1 to 2^62 - 1")
        self.size = size
        columns = isqrt(size - 1) + 1
        self._columns = np.uint64(columns)
        self._rows = np.uint64(-(-size // columns))
        rounds = SMALL_ROUNDS if size < SMALL_SIZE else ROUNDS
        counters: UInt64s = np.arange(rounds, dtype=np.uint64)
        self._round_keys = splitmix64(splitmix64(counters) ^ np.uint64(key % 2**64))

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where each index goes, int64 of the same shape."""
        values = self._encrypt(indices.astype(np.uint64))
        while (outside := values >= self.size).any():
            values[outside] = self._encrypt(values[outside])
        return values.astype(np.int64)

    def _encrypt(self, values: UInt64s) -> UInt64s:
        """Return the bijection of columns x rows at some values."""
        right, left = np.divmod(values, self._columns)
        for number, round_key in enumerate(self._round_keys):
            if number % 2:
                right = _add_modulo(right, _draw(left, round_key, self._rows), self._rows)
            else:
                left = _add_modulo(left, _draw(right, round_key, self._columns), self._columns)
        encrypted: UInt64s = right * self._columns + left
        return encrypted


def _draw(values: UInt64s, key: np.uint64, bound: np.uint64) -> UInt64s:
    """Return a random number below `bound`, which is at most 2^31, that follows from each value.

    A product instead of a remainder, which takes far longer (Lemire 2019, arXiv:1805.10941).
    """
    drawn: UInt64s = ((splitmix64(values ^ key) >> HALF) * bound) >> HALF
    return drawn


def _add_modulo(values: UInt64s, addends: UInt64s, bound: np.uint64) -> UInt64s:
    """Return sums modulo `bound`; both are below it."""
    sums = values + addends
    return np.where(sums >= bound, sums - bound, sums)


def splitmix64(values: UInt64s) -> UInt64s:
    """Return the output function of splitmix64, element by element (Steele, Lea and Flood 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
