"""Rows of numbers, such as the time of every step: exact to the bit.

A series lies in a column of the file beside its record (`harness.records.columns`). Records up to
schema 5.2 hold it in their JSON, packed.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast

from harness.spec.cell import MAX_STEPS
from workloads.options import Between

if TYPE_CHECKING:
    from numpy.typing import NDArray

Numbers: TypeAlias = "NDArray[Any]"
# NumPy's names of types, little-endian; without objects, texts and times.
DType = Literal[
    "<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1"
]  # fmt: skip
# Zeros pack to a thousandth of their size, so that a small file could fill the memory.
MAX_COUNT = MAX_STEPS


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

    @staticmethod
    def decode(value: Any) -> Series:
        """Return a series that is read already, or unpack that of a record up to 5.2."""
        from harness.records.decode import decode_value  # which decodes series

        if isinstance(value, Series):
            return value
        packed: PackedSeries = decode_value(PackedSeries, value)
        return packed.unpack()

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


@dataclass(frozen=True, kw_only=True)
class PackedSeries:
    """Numbers as base64 of zlib of their little-endian bytes, as records up to 5.2 have them."""

    dtype: DType
    count: Annotated[int, Between(0, MAX_COUNT)]  # of numbers
    data: str  # base64

    def unpack(self) -> Series:
        """Return the numbers.

        Raises ValueError if the content is damaged, or not what the header says. It is unpacked as
        far as the header says, whatever the size of what follows.
        """
        import numpy as np

        dtype = np.dtype(self.dtype)
        size = self.count * dtype.itemsize
        unpacker = zlib.decompressobj()
        try:
            content = unpacker.decompress(base64.b64decode(self.data, validate=True), size + 1)
        except (ValueError, zlib.error) as error:
            raise ValueError(f"a series can't be unpacked: {error}") from None
        if len(content) != size or not unpacker.eof:
            found = "more" if len(content) > size else f"{len(content) // dtype.itemsize}"
            raise ValueError(f"a series of {self.count} numbers has {found}")
        return Series.of(np.frombuffer(content, dtype=dtype))
