"""Reads what files say of the arrays in them, without reading the arrays, and without torch and numpy.

Every problem with a file is a ValueError of one line that names the file, what was found and what
is allowed.
"""

from __future__ import annotations

import ast
import math
import re
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

IDX_BYTES = 8  # IDX's code of unsigned bytes
NPY_MAGIC = b"\x93NUMPY"
NPY_NUMBER = re.compile(r"[<>|=]?([biuf])(\d+)")  # NumPy's name of a type of numbers, as in "<f4"
MAX_HEADER = 2**16  # bytes


@dataclass(frozen=True)
class ArrayHeader:
    """The type and shape of an array, and its position in its file."""

    dtype: str  # as NumPy names it
    shape: tuple[int, ...]
    offset: int  # bytes before its values, whose last dimension varies fastest

    @property
    def end(self) -> int:
        """Return the bytes up to the end of its values."""
        number = NPY_NUMBER.fullmatch(self.dtype)
        assert number is not None
        return self.offset + math.prod(self.shape) * int(number[2])


def read_npy_header(path: Path) -> ArrayHeader:
    """Return the header of a file that `numpy.save` has written."""
    with _open(path) as file:
        header = _parse_npy(path, file)
    _check_size(path, header)
    return header


def read_npz_header(path: Path, name: str) -> ArrayHeader:
    """Return the header of one of the arrays that `numpy.savez` has written; its offset means nothing."""
    with _open(path) as file:
        try:
            with zipfile.ZipFile(file) as archive, archive.open(f"{name}.npy") as member:
                return _parse_npy(path, member)
        except (zipfile.BadZipFile, KeyError, EOFError) as error:
            reason = error.args[0] if error.args else "no end"
            raise ValueError(
                f"{path}: found {reason}; allowed: an .npz file with the arrays images and labels"
            ) from None


def read_idx_header(path: Path) -> ArrayHeader:
    """Return the header of an IDX file of unsigned bytes, which is not gzipped."""
    with _open(path) as file:
        magic = file.read(4)
        if len(magic) < 4 or magic[:3] != bytes([0, 0, IDX_BYTES]):
            beginning = magic.hex() or "an empty file"
            raise ValueError(
                f"{path}: found {beginning} at the start; allowed: 000008, IDX bytes that are not"
                " gzipped: what is gzipped can't be mapped"
            )
        sizes = file.read(4 * magic[3])
        if len(sizes) < 4 * magic[3]:
            raise ValueError(f"{path}: found {4 + len(sizes)} bytes; allowed: a whole IDX header")
    header = ArrayHeader("|u1", struct.unpack(f">{magic[3]}I", sizes), 4 + len(sizes))
    _check_size(path, header)
    return header


def read_arrow_header(path: Path, column: str) -> ArrayHeader:
    """Return the type of a column of an Arrow IPC file and its shape; its offset means nothing."""
    import pyarrow

    try:
        with pyarrow.memory_map(str(path)) as file, pyarrow.ipc.open_file(file) as reader:
            schema = reader.schema
            batches = range(reader.num_record_batches)
            rows = sum(reader.get_batch(number).num_rows for number in batches)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: found {error}; allowed: an Arrow IPC file") from None
    if column not in schema.names:
        raise ValueError(
            f"{path}: found no column {column!r}; allowed: one of {', '.join(schema.names)}"
        )
    kind: Any = schema.field(column).type
    shape: tuple[int, ...] = (rows,)
    if pyarrow.types.is_fixed_size_list(kind):
        shape = (rows, kind.list_size)
        kind = kind.value_type
    if not (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)):
        raise ValueError(
            f"{path}: found column {column!r} of {kind}; allowed: numbers, or lists of a fixed size"
            " of numbers"
        )
    return ArrayHeader(f"<{kind.to_pandas_dtype()().dtype.str[1:]}", shape, 0)


def _parse_npy(path: Path, file: IO[bytes]) -> ArrayHeader:
    """Return the header at the start of a .npy file.

    The format: a magic, the version, the length of the header, the header as a literal of Python.
    """
    start = file.read(8)
    length_bytes = 2 if start[6:7] == b"\x01" else 4
    length = int.from_bytes(file.read(length_bytes), "little")
    if start[:6] != NPY_MAGIC or not 0 < length <= MAX_HEADER:
        raise ValueError(
            f"{path}: found {start[:6].hex() or 'an empty file'} at the start; allowed:"
            f" {NPY_MAGIC.hex()}, as numpy.save writes it"
        )
    try:
        header = ast.literal_eval(file.read(length).decode("latin-1"))
        dtype, shape = header["descr"], tuple(header["shape"])
        is_transposed = header["fortran_order"]
    except (ValueError, SyntaxError, KeyError, TypeError):
        raise ValueError(f"{path}: found a broken header; allowed: a whole .npy file") from None
    if not isinstance(dtype, str) or NPY_NUMBER.fullmatch(dtype) is None:
        raise ValueError(f"{path}: found values of type {dtype}; allowed: numbers")
    if is_transposed and len(shape) > 1:
        raise ValueError(
            f"{path}: found an array in Fortran's order; allowed: C's, as"
            " numpy.ascontiguousarray makes it"
        )
    return ArrayHeader(dtype, shape, len(start) + length_bytes + length)


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to be read; raises ValueError for one that can't be."""
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise ValueError(f"{path}: found {error.strerror}; allowed: a readable file") from None


def _check_size(path: Path, header: ArrayHeader) -> None:
    """Raise ValueError unless a file has as many bytes as its header says, and a value at least."""
    size = path.stat().st_size
    if size != header.end:
        raise ValueError(f"{path}: found {size} bytes; allowed: the {header.end} of its header")
    if not math.prod(header.shape):
        raise ValueError(f"{path}: found no samples; allowed: at least one")
