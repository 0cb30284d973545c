"""Rows of numbers, such as the time of every step: exact to the bit.

A series is a column of the file next to its record (`harness.records.files`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

if TYPE_CHECKING:
    from numpy.typing import NDArray

Numbers: TypeAlias = "NDArray[Any]"
# NumPy's names of types, little-endian; without objects, texts and times.
DType = Literal[
    "<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1"
]  # fmt: skip


class Series:
    """A row of numbers, read-only.

    One that is read from a column is loaded whenever it is unpacked, and not kept: thousands of
    records fit into memory.
    """

    __slots__ = ("_load", "count", "dtype")

    def __init__(self, dtype: DType, count: int, load: Callable[[], Numbers]) -> None:
        self.dtype = dtype
        self.count = count  # of numbers
        self._load = load

    @staticmethod
    def of(numbers: Numbers) -> Series:
        """Return the series of a little-endian array, shape (count,), that nobody writes to."""
        return Series(cast("DType", numbers.dtype.str), numbers.size, lambda: numbers)

    @staticmethod
    def pack(values: Numbers) -> Series:
        """Return the series of a copy of an array, shape (count,), which keeps its type."""
        import numpy as np  # here, because planning reads no series and should start at once

        numbers = np.array(values, dtype=values.dtype.newbyteorder("<"), order="C", copy=True)
        numbers.flags.writeable = False
        return Series.of(numbers)

    def unpack(self) -> Numbers:
        """Return the numbers, shape (count,), read-only; raises BadFile where they are damaged."""
        return self._load()

    def __eq__(self, other: object) -> bool:
        """Return whether the other one has the same type and the same bits, NaN and -0.0 too."""
        if not isinstance(other, Series):
            return NotImplemented
        if (self.dtype, self.count) != (other.dtype, other.count):
            return False
        return self.unpack().tobytes() == other.unpack().tobytes()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Series({self.dtype}, {self.count})"

    def __deepcopy__(self, memo: object) -> Series:
        """Return the series itself, as nothing can change it."""
        return self


def mean_over_ranks(rows: Numbers) -> Numbers:
    """Return the mean of each column over the ranks, shape (steps,), of rows of shape (ranks, steps).

    NaN stands for a step of which a rank, of a script, has reported nothing.
    """
    import numpy as np

    is_known = ~np.isnan(rows)
    if is_known.all():
        means: Numbers = rows.mean(axis=0)
        return means
    counts = is_known.sum(axis=0)
    sums = np.where(is_known, rows, 0.0).sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
