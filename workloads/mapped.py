"""Samples in files that are mapped into memory, so that they may be larger than it.

The system reads a page of a file when it is touched, keeps it as long as nobody needs the memory,
and shares it among all processes. What a process has of it counts as the file's, not as its own.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.arrays import ArrayHeader, read_idx_header, read_npy_header
from workloads.base import Batch

Rows = NDArray[Any]  # shape (samples, ...)


@dataclass(frozen=True)
class MappedArray:
    """Rows of an array in a file, in one piece or several."""

    path: Path
    blocks: Sequence[Rows]  # one after the other, each of shape (rows, ...)
    # Asks the system to read some rows ahead; None where it does so anyway.
    prefetch: Callable[[NDArray[np.int64]], None] | None = None
    reopen: Callable[[], MappedArray] | None = None  # maps the same array again

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle the location of the rows, not the rows, which may be larger than memory."""
        if self.reopen is None:
            return super().__reduce__()
        return _call, (self.reopen,)

    def __len__(self) -> int:
        return sum(len(block) for block in self.blocks)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of a row."""
        return self.blocks[0].shape[1:]

    def take(self, rows: NDArray[np.int64]) -> Rows:
        """Return a copy of some rows, shape (len(rows), ...)."""
        if self.prefetch is not None:
            self.prefetch(rows)
        if len(self.blocks) == 1:
            taken: Rows = self.blocks[0][rows]
            return taken
        ends = np.cumsum([len(block) for block in self.blocks])
        numbers = np.searchsorted(ends, rows, side="right")
        copy = np.empty((len(rows), *self.row_shape), self.blocks[0].dtype)
        for number in np.unique(numbers).tolist():
            is_here = numbers == number
            block = self.blocks[number]
            copy[is_here] = block[rows[is_here] - (ends[number] - len(block))]
        return copy


def _call(reopen: Callable[[], MappedArray]) -> MappedArray:
    """Return what pickle has in place of an array."""
    return reopen()


def map_npy(path: Path, *, at_random: bool = True) -> MappedArray:
    """Return the array of a file that `numpy.save` has written; `at_random` as for `map_idx`.

    Raises ValueError for a file that is something else, or shorter than its header says.
    """
    reopen = partial(map_npy, path, at_random=at_random)
    return _map_array(path, read_npy_header(path), at_random, reopen)


def map_idx(path: Path, *, at_random: bool = True) -> MappedArray:
    """Return the array of an IDX file of unsigned bytes, which must not be gzipped.

    With `at_random`, no more is read than what is touched. Otherwise the system reads ahead, which
    is for rows that are wanted one after the other. Raises ValueError as `map_npy` does.
    """
    reopen = partial(map_idx, path, at_random=at_random)
    return _map_array(path, read_idx_header(path), at_random, reopen)


def _map_array(
    path: Path, header: ArrayHeader, at_random: bool, reopen: Callable[[], MappedArray]
) -> MappedArray:
    """Return the array that a file has behind its header."""
    mapping = _map_file(path, at_random)
    flat = np.frombuffer(mapping, header.dtype, math.prod(header.shape), header.offset)
    rows = flat.reshape(header.shape)
    prefetch = None
    if at_random and hasattr(mmap, "MADV_WILLNEED"):
        row_bytes = (header.end - header.offset) // len(rows)
        prefetch = partial(_prefetch, mapping, header.offset, row_bytes)
    return MappedArray(path, [rows], prefetch, reopen)


def _prefetch(mapping: mmap.mmap, offset: int, row_bytes: int, rows: NDArray[np.int64]) -> None:
    """Have the system read some rows at once, which it would else do page by page as it meets them."""
    for row in rows.tolist():
        start = offset + row * row_bytes
        page = start - start % mmap.PAGESIZE
        mapping.madvise(mmap.MADV_WILLNEED, page, start + row_bytes - page)


def map_arrow(path: Path, column: str, *, at_random: bool = True) -> MappedArray:
    """Return a column of an Arrow IPC file of numbers, or of lists of equally many numbers.

    It has one block for each record batch. Raises ValueError for another file, column or type, and
    for missing values; `at_random` as for `map_idx`.
    """
    import pyarrow

    try:
        with pyarrow.ipc.open_file(pyarrow.py_buffer(_map_file(path, at_random))) as reader:
            table = reader.read_all()  # which copies nothing: its buffers are those of the mapping
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path}: found {error}; allowed: an Arrow IPC file") from None
    if column not in table.column_names:
        raise ValueError(
            f"{path}: found no column {column!r}; allowed: one of {', '.join(table.column_names)}"
        )
    chunks = [chunk for chunk in table.column(column).chunks if len(chunk)]
    if not chunks:
        raise ValueError(f"{path}: found no rows; allowed: at least one")
    blocks = [_arrow_rows(path, column, chunk) for chunk in chunks]
    return MappedArray(path, blocks, reopen=partial(map_arrow, path, column, at_random=at_random))


def _arrow_rows(path: Path, column: str, chunk: Any) -> Rows:
    """Return the rows of an Arrow array without a copy; raises ValueError where there must be one."""
    import pyarrow

    kind = chunk.type
    width: tuple[int, ...] = ()
    if pyarrow.types.is_fixed_size_list(kind):
        width = (kind.list_size,)
    numbers = chunk.flatten() if width else chunk
    is_number = pyarrow.types.is_integer(numbers.type) or pyarrow.types.is_floating(numbers.type)
    if not is_number or chunk.null_count or numbers.null_count:
        raise ValueError(
            f"{path}: found column {column!r} of {kind} with {chunk.null_count} missing values;"
            " allowed: numbers, or lists of a fixed size of numbers, and none missing"
        )
    rows: Rows = numbers.to_numpy(zero_copy_only=True).reshape(len(chunk), *width)
    return rows


def _map_file(path: Path, at_random: bool) -> mmap.mmap:
    """Return a read-only mapping of a file; raises ValueError for one that can't be mapped."""
    try:
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise ValueError(f"{path}: found {error}; allowed: a file that can be mapped") from None
    if at_random and hasattr(mmap, "MADV_RANDOM"):
        # Linux would read 32 pages around each that is touched.
        mapping.madvise(mmap.MADV_RANDOM)
    return mapping


class MappedSamples:
    """Samples whose parts are in mapped arrays, of equal lengths.

    They are trained on in the keyed order, which takes no memory either, unless the axis `order`
    asks for a permutation.
    """

    reads_files = True  # while training

    def __init__(
        self,
        arrays: Sequence[MappedArray],
        transform: Callable[[Batch], Batch] | None = None,
    ) -> None:
        """Take a sample from each row; raises ValueError for arrays of different lengths.

        `transform` makes a batch of the rows, as tensors of the arrays' types.
        """
        for array in arrays[1:]:
            if len(array) != len(arrays[0]):
                raise ValueError(
                    f"{array.path}: found {len(array)} rows; allowed: the {len(arrays[0])} of"
                    f" {arrays[0].path}"
                )
        self.arrays = tuple(arrays)
        self._transform = transform

    def __len__(self) -> int:
        return len(self.arrays[0])

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return the samples at `indices`."""
        rows = np.asarray(indices, dtype=np.int64)
        batch = tuple(torch.from_numpy(array.take(rows)) for array in self.arrays)
        return batch if self._transform is None else self._transform(batch)
