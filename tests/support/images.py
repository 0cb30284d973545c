"""Writes small data sets as IDX files, the format of MNIST."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

NAMES = [
    f"{split}-{kind}-ubyte"
    for split in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
]


def idx(shape: Sequence[int], values: bytes) -> bytes:
    """Return the content of an IDX file of unsigned bytes with this shape."""
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values


def write_images(folder: Path, labels: bytes = bytes(range(10)) * 7) -> Path:
    """Write a complete data set of black 2x2 images, one a label, and return its folder."""
    folder.mkdir(exist_ok=True)
    for images, named, values in ((NAMES[0], NAMES[1], labels), (NAMES[2], NAMES[3], b"\0\1")):
        (folder / images).write_bytes(idx((len(values), 2, 2), bytes(4 * len(values))))
        (folder / named).write_bytes(idx((len(values),), values))
    return folder
