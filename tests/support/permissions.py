"""Has the kernel check permissions of files for root too, as it does for any other user."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from contextlib import contextmanager

VERSION_3 = 0x20080522  # _LINUX_CAPABILITY_VERSION_3 in linux/capability.h
OVERRIDES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


@contextmanager
def checked_permissions() -> Iterator[None]:
    """Have this thread do without root's right to read and write any file."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("Ii", VERSION_3, 0)  # of this thread
    before = ctypes.create_string_buffer(24)
    assert libc.capget(header, before) == 0
    effective, *others = struct.unpack("6I", before.raw)
    assert libc.capset(header, struct.pack("6I", effective & ~OVERRIDES, *others)) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0
