"""Long rows of numbers in a JSON record: exact to the bit and compact.

Decimal text would be several times as long, and would have no NaN.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

Numbers: TypeAlias = "NDArray[Any]"


@dataclass(frozen=True, kw_only=True)
class Series:
    """Numbers as base64 of zlib of their little-endian bytes.

    What is unpacked has the type and every bit of what was packed, NaN and -0.0 included.
    """

    dtype: str  # NumPy's: <f8, <f4, <i8, …
    count: int  # of numbers
    data: str  # base64

    @staticmethod
    def pack(values: Numbers) -> Series:
        """Return the series of an array, shape (count,), which keeps its type."""
        import numpy as np  # here, because planning reads no series and should start at once

        little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
        packed = base64.b64encode(zlib.compress(little.tobytes())).decode()
        return Series(dtype=little.dtype.str, count=little.size, data=packed)

    def unpack(self) -> Numbers:
        """Return the numbers, shape (count,), read-only.

        Raises ValueError if the content is not what the header says, and zlib.error if it is
        damaged.
        """
        import numpy as np

        values = np.frombuffer(zlib.decompress(base64.b64decode(self.data)), dtype=self.dtype)
        if values.size != self.count:
            raise ValueError(f"a series of {values.size} numbers says that it has {self.count}")
        return values
