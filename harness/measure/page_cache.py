"""Sees how much of some files is in the page cache, and drops it from there or reads it in.

The page cache is memory in which Linux keeps what was read of files, for as long as nobody needs
it. A training that reads its data while it trains is faster where they are in it, so a comparison
must know, and `page_cache: cold` or `warm` makes all trials of a cell begin alike.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from harness.core.control_groups import memory_limit
from harness.core.errors import NotApplied
from harness.records.record import PageCache

BLOCK_BYTES = 2**30  # of a file that is looked at or read at once; a multiple of every page size
READ_BYTES = 2**22
# Of the files' bytes: the kernel keeps a page now and then that it is at work on.
MAX_COLD, MIN_WARM = 0.02, 0.98


class PageCacheWatch:
    """Notes how much of some files is cached when training begins, and when it has ended."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Take files as they are now."""
        self._files = files
        self._before = cached_bytes(files)

    def read(self) -> PageCache:
        """Return the two measurements."""
        return PageCache(
            files=len(self._files),
            bytes=_total_bytes(self._files),
            cached_before=self._before,
            cached_after=cached_bytes(self._files),
            memory_limit=memory_limit(),
        )


def prepare_page_cache(files: Sequence[Path], state: Literal["any", "cold", "warm"]) -> None:
    """Drop files from the page cache, or read them into it, or leave them as they are.

    Raises NotApplied if they are not in the state that was asked for, or nobody can know.
    """
    if state == "any":
        return
    for path in files:
        if state == "cold":
            _drop(path)
        else:
            _read_through(path)
    total, cached = _total_bytes(files), cached_bytes(files)
    if cached is None:
        reason = "this system does not say what of these files is cached"
    elif state == "cold" and cached > MAX_COLD * total:
        reason = "another process has mapped them, or their file system keeps them in memory"
    elif state == "warm" and cached < MIN_WARM * total:
        reason = "they are larger than the memory that this process may take"
    else:
        return
    raise NotApplied(
        f"page_cache={state} had no effect: {cached} of the {total} bytes of the data's files are"
        f" cached; {reason}"
    )


def _total_bytes(files: Iterable[Path]) -> int:
    """Return the size of some files together."""
    return sum(path.stat().st_size for path in files)


def _drop(path: Path) -> None:
    """Drop a file from the page cache, except for pages that a process has mapped and touched."""
    if not hasattr(os, "posix_fadvise"):
        return
    with path.open("rb") as file:
        os.fdatasync(file.fileno())  # pages that are not written yet can't be dropped
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_through(path: Path) -> None:
    """Read a file from its start to its end."""
    buffer = bytearray(READ_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def cached_bytes(files: Iterable[Path]) -> int | None:
    """Return how many bytes of some files are in the page cache, None where that can't be known.

    Linux tells those who own a file or may write it; to others it says that all is cached.
    """
    total = 0
    for path in files:
        if not hasattr(ctypes.CDLL(None), "mincore"):
            return None
        if path.stat().st_uid != os.geteuid() and not os.access(path, os.W_OK):
            return None
        total += _cached_bytes_of(path)
    return total


def _cached_bytes_of(path: Path) -> int:
    """Return how many bytes of a file are in the page cache, in whole pages."""
    size = path.stat().st_size
    pages = 0
    with path.open("rb") as file:
        for offset in range(0, size, BLOCK_BYTES):
            length = min(BLOCK_BYTES, size - offset)
            with mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=offset) as block:
                pages += _cached_pages(block)
    return min(size, pages * mmap.PAGESIZE)


def _cached_pages(block: mmap.mmap) -> int:
    """Return how many pages of a mapping are in memory (man 2 mincore)."""
    import numpy as np

    libc = ctypes.CDLL(None, use_errno=True)
    flags = np.zeros(-(-len(block) // mmap.PAGESIZE), dtype=np.uint8)
    address = np.frombuffer(block, dtype=np.uint8).ctypes.data
    result = libc.mincore(
        ctypes.c_void_p(address), ctypes.c_size_t(len(block)), ctypes.c_void_p(flags.ctypes.data)
    )
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int((flags & 1).sum())
