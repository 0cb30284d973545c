"""Reads data files without torch and numpy.

Every problem with a file is a ValueError of one line that names the file, what was found and what
is allowed.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
# The files of a pretrained model that decide what it computes.
CHECKPOINT = (CONFIG, WEIGHTS, TOKENIZER)


class UnknownColumn(ValueError):
    """A CSV file without the column that a setting names."""

    def __init__(self, message: str, setting: str) -> None:
        """Make the error; `setting` is the one to change."""
        super().__init__(message, setting)
        self.setting = setting

    def __str__(self) -> str:
        return str(self.args[0])


GZIP_MAGIC = b"\x1f\x8b"
ARCHIVES = {  # by what they begin with
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}


@contextmanager
def errors_naming(key: str) -> Iterator[None]:
    """Put `key`, the setting that named a file, in front of every ValueError that is raised inside."""
    try:
        yield
    except ValueError as error:
        _, *others = error.args
        error.args = (f"{key}: {error}", *others)
        raise


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, decompressed if it is gzipped; other archives are refused."""
    try:
        content = path.read_bytes()
        if content.startswith(GZIP_MAGIC):
            content = gzip.decompress(content)
        for magic, kind in ARCHIVES.items():
            if content.startswith(magic):
                raise ValueError(f"{path}: found a {kind} archive; allowed: its content, or gzip")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path}: found a corrupted gzip file ({error}); allowed: a complete one"
        ) from None
    except OSError as error:
        raise ValueError(f"{path}: found {error.strerror}; allowed: a readable file") from None
    return content


def find_idx(folder: Path, name: str) -> Path:
    """Return the path of the IDX file `name` in a folder, gzipped or not."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: found no such folder; allowed: a folder with IDX files")
    candidates = [folder / name, folder / f"{name}.gz"]
    for path in candidates:
        if path.is_file():
            return path
    raise ValueError(
        f"{candidates[0]}: found no such file; allowed: this file, gzipped (.gz) or not"
    )


def read_idx(path: Path, dimensions: int) -> tuple[tuple[int, ...], memoryview]:
    """Return the shape and the values of an IDX file of unsigned bytes.

    The format, which MNIST was published in: two zero bytes; 0x08 for unsigned bytes; the number of
    dimensions; each dimension as a big-endian 32-bit integer; then the values, the last dimension
    varying fastest.
    """
    content = read_bytes(path)
    magic = bytes([0, 0, 8, dimensions])
    if content[:4] != magic:
        beginning = content[:4].hex() or "an empty file"
        raise ValueError(
            f"{path}: found {beginning} at the start; allowed: {magic.hex()}, IDX bytes in"
            f" {dimensions} dimension(s)"
        )
    header_bytes = 4 + 4 * dimensions
    if len(content) < header_bytes:
        raise ValueError(
            f"{path}: found {len(content)} bytes; allowed: at least the {header_bytes} of an IDX"
            " header"
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header_bytes])
    values = memoryview(content)[header_bytes:]
    if len(values) != math.prod(shape):
        sizes = " x ".join(map(str, shape))
        raise ValueError(f"{path}: found {len(values)} values; allowed: the {sizes} of its header")
    if not len(values):
        raise ValueError(f"{path}: found no samples; allowed: at least one")
    return shape, values


def read_labeled(path: Path, text_column: str, label_column: str) -> list[tuple[str, str]]:
    """Return the (text, label) rows of a UTF-8 CSV file with a header.

    Spaces around labels are removed, empty lines are skipped.
    """
    content = read_bytes(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}: found byte 0x{content[error.start]:02x} in line {line}; allowed: UTF-8"
        ) from None
    csv.field_size_limit(max(len(text), csv.field_size_limit()))  # by default 131,072 characters
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        rows = _labeled_rows(path, reader, text_column, label_column)
    except csv.Error as error:
        raise ValueError(
            f"{path}: found {error} in line {reader.line_num}; allowed: well-formed CSV"
        ) from None
    if not rows:
        raise ValueError(f"{path}: found no rows; allowed: a header and at least one row")
    return rows


def _labeled_rows(
    path: Path, reader: Iterator[list[str]], text_column: str, label_column: str
) -> list[tuple[str, str]]:
    """Return the (text, label) pairs of a CSV reader; rows are counted from 1, without the header."""
    header = next(reader, [])
    if not any(header):
        raise ValueError(f"{path}: found no header; allowed: a header and at least one row")
    text_index = _column_index(path, header, "text", text_column)
    label_index = _column_index(path, header, "label", label_column)
    pairs: list[tuple[str, str]] = []
    for number, row in enumerate(reader, start=1):
        if not row:
            continue
        if len(row) != len(header):
            raise ValueError(
                f"{path}: found {len(row)} fields in row {number}; allowed: {len(header)}, as in"
                " the header"
            )
        text, label = row[text_index], row[label_index].strip()
        for column, value in ((text_column, text), (label_column, label)):
            if not value.strip():
                raise ValueError(
                    f"{path}: found an empty {column!r} in row {number}; allowed: a text and a"
                    " label in every row"
                )
        pairs.append((text, label))
    return pairs


def _column_index(path: Path, header: list[str], key: str, column: str) -> int:
    """Return the position of a column; `key` is the setting that names it."""
    if header.count(column) != 1:
        columns = ", ".join(header)
        if len(header) == 1 and (";" in columns or "\t" in columns):
            raise ValueError(
                f"{path}: found the header {columns!r}, a single column; allowed: columns that are"
                " separated by commas"
            )
        raise UnknownColumn(
            f"{path}: found no single column {column!r} ({key}); allowed: one of {columns}", key
        )
    return header.index(column)


def checkpoint_files(folder: Path) -> list[Path]:
    """Return the files of a pretrained model that decide what it computes."""
    return [folder / name for name in CHECKPOINT]


def checkpoint_positions(folder: Path) -> int:
    """Return how many tokens the DistilBERT model in a folder takes at most.

    Raises ValueError unless the folder is complete.
    """
    for path in checkpoint_files(folder):
        if not path.is_file():
            raise ValueError(
                f"{path}: found no such file; allowed: a folder from save_pretrained, with its"
                " tokenizer"
            )
    config_path = folder / CONFIG
    config = _read_json_object(config_path)
    model_type = config.get("model_type")
    if model_type != "distilbert":
        raise ValueError(f"{config_path}: found model_type {model_type!r}; allowed: 'distilbert'")
    _read_json_object(folder / TOKENIZER)
    _check_safetensors(folder / WEIGHTS)
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int) or isinstance(positions, bool):
        raise ValueError(
            f"{config_path}: found max_position_embeddings {positions!r}; allowed: an integer"
        )
    return positions


def check_architecture(folder: Path, name: str, shape: Mapping[str, int]) -> None:
    """Raise ValueError unless the model in a folder has the architecture `name`.

    `shape` has its numbers by the names of config.json.
    """
    path = folder / CONFIG
    config = _read_json_object(path)
    for key, needed in shape.items():
        if config.get(key) != needed:
            raise ValueError(
                f"{path}: found {key} {config.get(key)!r}; allowed: {needed}, as of size {name}; or"
                " size null, for whatever the folder has"
            )


def _read_json_object(path: Path) -> dict[str, object]:
    """Return the content of a JSON file that holds an object."""
    try:
        content = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:  # JSONDecodeError is a ValueError
        raise ValueError(
            f"{path}: found no JSON ({error}); allowed: a complete JSON file"
        ) from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: found a {type(content).__name__}; allowed: an object")
    return content


def _check_safetensors(path: Path) -> None:
    """Raise ValueError unless a safetensors file is as long as its header says.

    The format: the length of the header as 8 little-endian bytes; a JSON object with the offsets
    of each tensor's data, counted from the end of the header; then the data.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        # A corrupted length may be far larger than memory.
        header = file.read(header_bytes) if header_bytes < size else b""
    try:
        tensors = [entry for name, entry in json.loads(header).items() if name != "__metadata__"]
        needed = 8 + header_bytes + max(entry["data_offsets"][1] for entry in tensors)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise ValueError(
            f"{path}: found no safetensors header; allowed: a complete safetensors file"
        ) from None
    if size != needed:
        raise ValueError(f"{path}: found {size} bytes; allowed: the {needed} of its header")
