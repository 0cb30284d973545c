"""Long rows of numbers in a JSON record: exact to the bit and compact.

Decimal text would be several times as long, and would have no NaN.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, cast

from harness.spec.cell import MAX_STEPS
from workloads.options import Between

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

Numbers: TypeAlias = "NDArray[Any]"
# NumPy's names of types, little-endian; without objects, texts and times.
DType = Literal[
    "<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1"
]  # fmt: skip
# Zeros pack to a thousandth of their size, so that a small file could fill the memory.
MAX_COUNT = MAX_STEPS


@dataclass(frozen=True, kw_only=True)
class Series:
    """Numbers as base64 of zlib of their little-endian bytes.

    What is unpacked has the type and every bit of what was packed, NaN and -0.0 included.
    """

    dtype: DType
    count: Annotated[int, Between(0, MAX_COUNT)]  # of numbers
    data: str  # base64

    @staticmethod
    def pack(values: Numbers) -> Series:
        """Return the series of an array, shape (count,), which keeps its type."""
        import numpy as np  # here, because planning reads no series and should start at once

        little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
        packed = base64.b64encode(zlib.compress(little.tobytes())).decode()
        return Series(dtype=cast("DType", little.dtype.str), count=little.size, data=packed)

    def unpack(self) -> Numbers:
        """Return the numbers, shape (count,), read-only.

        Raises ValueError if the content is damaged, or not what the header says.
        """
        return self._numbers

    @cached_property
    def _numbers(self) -> Numbers:
        """Unpack the numbers, as far as the header says, whatever the size of what follows."""
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
        return np.frombuffer(content, dtype=dtype)
