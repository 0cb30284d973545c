"""Readers of data files that need neither torch nor numpy; what is wrong with a file is a ValueError of one line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONFIG, WEIGHTS, TOKENIZER = CHECKPOINT = ("config.json", "model.safetensors", "tokenizer.json")


@contextmanager
def blame(key: str) -> Iterator[None]:
    """Put the key of the setting that named a bad file in front of the error."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def read_bytes(path: Path) -> bytes:
    """The content of a file, unzipped if it is gzipped."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path}: found a corrupted gzip file ({error}); allowed: a whole one"
        ) from None
    except OSError as error:
        raise ValueError(
            f"{path}: found {error.strerror}; allowed: a file that can be read"
        ) from None


def find_idx(folder: Path, name: str) -> Path:
    """The file of that name in the folder, gzipped or not."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: found no such folder; allowed: one with IDX files")
    candidates = [folder / name, folder / f"{name}.gz"]
    for path in candidates:
        if path.is_file():
            return path
    raise ValueError(f"{candidates[0]}: found no such file; allowed: it, or the same gzipped (.gz)")


def read_idx(path: Path, dimensions: int) -> tuple[tuple[int, ...], memoryview]:
    """Shape and values of an IDX file of unsigned bytes.

    The format: two zero bytes, 0x08 for unsigned bytes, the number of dimensions, each dimension as a big-endian
    32-bit integer, then the values, the last dimension fastest.
    """
    content = read_bytes(path)
    magic = bytes([0, 0, 8, dimensions])
    if content[:4] != magic:
        found = content[:4].hex() or "an empty file"
        kind = f"{magic.hex()}, IDX bytes in {dimensions} dimension(s)"
        raise ValueError(f"{path}: found {found} at the start; allowed: {kind}")
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise ValueError(
            f"{path}: found {len(content)} bytes; allowed: at least the {header} of an IDX header"
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    values = memoryview(content)[header:]
    if len(values) != math.prod(shape):
        sizes = " x ".join(map(str, shape))
        raise ValueError(f"{path}: found {len(values)} values; allowed: the {sizes} of its header")
    if not len(values):
        raise ValueError(f"{path}: found no samples; allowed: at least one")
    return shape, values


def read_labelled(path: Path, text: str, label: str) -> list[tuple[str, str]]:
    """The (text, label) rows of a UTF-8 CSV file with a header; labels lose the space around them."""
    content = read_bytes(path)
    try:
        reader = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}: found byte 0x{content[error.start]:02x} in line {line}; allowed: UTF-8"
        ) from None
    try:
        rows = _labelled(path, reader, text, label)
    except csv.Error as error:
        raise ValueError(
            f"{path}: found {error} in line {reader.line_num}; allowed: well-formed CSV"
        ) from None
    if not rows:
        raise ValueError(f"{path}: found no rows; allowed: a header and at least one row")
    return rows


def _labelled(
    path: Path, reader: Iterator[list[str]], text: str, label: str
) -> list[tuple[str, str]]:
    header = next(reader, [])
    for key, name in (("text", text), ("label", label)):
        if header.count(name) != 1:
            found = ", ".join(header) or "a header line with the names of columns"
            raise ValueError(
                f"{path}: found no single column {name!r} ({key}); allowed: one of {found}"
            )
    columns = header.index(text), header.index(label)
    rows = []
    for number, row in enumerate(reader, start=1):
        if not row:
            continue
        if len(row) != len(header):
            raise ValueError(
                f"{path}: found {len(row)} fields in row {number}; allowed: {len(header)}, as in the header"
            )
        pair = row[columns[0]], row[columns[1]].strip()
        for name, value in zip((text, label), pair, strict=True):
            if not value.strip():
                raise ValueError(
                    f"{path}: found an empty {name!r} in row {number}; allowed: a text and a label in every row"
                )
        rows.append(pair)
    return rows


def checkpoint_files(folder: Path) -> list[Path]:
    """The files of a model folder that decide what it computes."""
    return [folder / name for name in CHECKPOINT]


def checkpoint_positions(folder: Path) -> int:
    """Most tokens that the DistilBERT model in the folder can take; raises ValueError unless the folder is complete."""
    for path in checkpoint_files(folder):
        if not path.is_file():
            raise ValueError(
                f"{path}: found no such file; allowed: a folder from save_pretrained, with its tokenizer"
            )
    config = _read_json(folder / CONFIG)
    if config.get("model_type") != "distilbert":
        raise ValueError(
            f"{folder / CONFIG}: found model_type {config.get('model_type')!r}; allowed: 'distilbert'"
        )
    _read_json(folder / TOKENIZER)
    _check_safetensors(folder / WEIGHTS)
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int):
        raise ValueError(
            f"{folder / CONFIG}: found max_position_embeddings {positions!r}; allowed: an integer"
        )
    return positions


def _read_json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(read_bytes(path))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: found no JSON ({error}); allowed: a whole JSON file") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: found a {type(content).__name__}; allowed: an object")
    return content


def _check_safetensors(path: Path) -> None:
    """The format: the header's length as 8 little-endian bytes, a JSON header with offsets, then the tensors."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length < path.stat().st_size else b""
    try:
        tensors = [entry for name, entry in json.loads(header).items() if name != "__metadata__"]
        needed = 8 + length + max(entry["data_offsets"][1] for entry in tensors)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"{path}: found no safetensors header; allowed: a whole safetensors file"
        ) from None
    if path.stat().st_size != needed:
        raise ValueError(
            f"{path}: found {path.stat().st_size} bytes; allowed: the {needed} of its header"
        )
