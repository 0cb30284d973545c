"""Writes records and reads them back, checked.

A record is a small JSON header that commands read, and a file of arrays next to it, of which the
header has the name and the SHA-256: `numpy.load` opens it. What a rank leaves is stored alike. The
array of a series of all ranks has the shape (ranks, longest), and NaN after the end of a shorter one.

The arrays are written first, under a name that has their digest; then the header replaces the last
one. So a header never names a file that was written for another one. They are read when they are
looked at, uncompressed: timings are noise in most of their bits.
"""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from harness.core.paths import write_atomically
from harness.core.validation import decode_json, decode_value
from harness.records import seal
from harness.records.decode import FileFormat, decode_file, read_bytes
from harness.records.environment import Environment
from harness.records.record import SCHEMA, Numbers, Outcome, RankResult, Record, RunSettings
from harness.sweep.cell import Cell, Repeat, Seed, Trial

T = TypeVar("T")

MAX_ARRAY_BYTES = 2**36  # of a record; 4,096 ranks with a million steps
KEPT_PARTS = 2**14  # cells, environments and settings that are decoded once
RECORD_FORMAT = FileFormat(
    name="record",
    schema=SCHEMA,
    remedy="move it away and run the sweep again to measure it again",
    is_sealed=True,
)
# Without a schema: the same version of the harness reads it, minutes later.
RANK_RESULT_FORMAT = FileFormat(
    name="rank's result", remedy="harness run --force measures it again", is_sealed=True
)
RANKS = "ranks"  # the array that is the JSON of all ranks, with the length of each series


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayFile:
    """What a header says of the file of arrays next to it."""

    file: str
    sha256: str


class _TrialText(msgspec.Struct):
    """The trial of a record, with its cell as JSON."""

    cell: Raw
    seed: Seed
    repeat: Repeat


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header(Outcome):
    """A header, with what trials of a sweep have in common as JSON."""

    trial: _TrialText
    environment: Raw
    settings: Raw
    arrays: ArrayFile


def write_record(path: Path, record: Record, *, durable: bool = True) -> None:
    """Write a record: its arrays, then the sealed header.

    Raises ValueError for what JSON can't hold, such as a number that is NaN.
    """
    content = {"schema": SCHEMA, **asdict(record)}
    del content["load_ranks"], content["load_losses"]
    _write(path, content, stack(record.ranks), durable=durable)


def write_rank_result(path: Path, result: RankResult) -> None:
    """Write what a rank leaves, as `write_record` does; it need not survive a loss of power."""
    content = asdict(result)
    arrays: dict[str, Numbers] = {}
    _take_arrays(content, "", arrays)
    _write(path, content, arrays, durable=False)


def _write(
    path: Path, content: Mapping[str, Any], arrays: Mapping[str, Numbers], *, durable: bool = True
) -> None:
    """Write a sealed header and the file of arrays that it names."""
    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # no array is called `allow_pickle`
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest()
    name = f"{path.stem}-{digest[:12]}.npz"
    # Before anything is written: it may be refused.
    header = seal.sealed_text({**content, "arrays": {"file": name, "sha256": digest}})
    write_atomically(path.with_name(name), buffer.getvalue(), durable=durable)
    write_atomically(path, header, durable=durable)


def read_record(path: Path) -> Record:
    """Read the header of a record; its ranks are read whenever they are looked at.

    Raises BadFile for a file that is missing, incomplete, of another schema or changed after it was
    written. Ranks and losses raise it for arrays that are missing or other than the header says.
    """
    header = decode_file(_Header, path, RECORD_FORMAT)
    outcome = {field.name: getattr(header, field.name) for field in fields(Outcome)}
    try:
        cell = decode_part(Cell, bytes(header.trial.cell))
        environment = decode_part(Environment | None, bytes(header.environment))
        settings = decode_part(RunSettings | None, bytes(header.settings))
    except (msgspec.DecodeError, ValueError) as error:
        raise RECORD_FORMAT.unreadable(path, error) from None
    return Record(
        **outcome,
        trial=Trial(cell=cell, seed=header.trial.seed, repeat=header.trial.repeat),
        environment=environment,
        settings=settings,
        load_ranks=partial(_read_ranks, path, header.arrays),
        load_losses=partial(_read_losses, path, header.arrays),
    )


@lru_cache(KEPT_PARTS)
def decode_part(kind: Any, text: bytes) -> Any:
    """Return the JSON of a part that thousands of records have in common, as one object of a `kind`."""
    return decode_json(kind, text)


def read_record_if_exists(path: Path) -> Record | None:
    """Read a record, None where there is no file; raises BadFile as `read_record` does."""
    return read_record(path) if path.exists() else None


def read_rank_result(path: Path) -> RankResult:
    """Read what one rank left.

    Raises BadFile for a file that is missing, incomplete or changed after it was written.
    """
    content = decode_file(dict[str, Any], path, RANK_RESULT_FORMAT)
    try:
        described = decode_value(ArrayFile, content.pop("arrays", None))
        for name, values in _read_arrays(path, described, RANK_RESULT_FORMAT).items():
            _put_array(content, name, values)
        result: RankResult = decode_value(RankResult, content)
    except ValueError as error:
        raise RANK_RESULT_FORMAT.unreadable(path, error) from None
    return result


def _read_arrays(
    header_path: Path, described: ArrayFile, file_format: FileFormat, *names: str
) -> dict[str, Numbers]:
    """Return the arrays that a header names, or some; raises BadFile for others than it describes."""
    import numpy as np

    path = header_path.with_name(Path(described.file).name)
    content = read_bytes(path, file_format, MAX_ARRAY_BYTES)
    digest = hashlib.sha256(content).hexdigest()
    if digest != described.sha256:
        problem = f"found the SHA-256 {digest[:12]}…; allowed: {described.sha256[:12]}…"
        raise file_format.error(path, f"{problem}, as {header_path.name} says")
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in names or archive.files}


def _read_losses(header_path: Path, described: ArrayFile) -> Numbers:
    """Return the losses of the ranks of a record."""
    return _read_arrays(header_path, described, RECORD_FORMAT, "loss")["loss"]


def _read_ranks(header_path: Path, described: ArrayFile) -> Sequence[RankResult]:
    """Return the results of the ranks of a record."""
    arrays = _read_arrays(header_path, described, RECORD_FORMAT)
    contents = msgspec.json.decode(arrays.pop(RANKS).tobytes())
    for row, content in enumerate(contents):
        for name, values in arrays.items():
            _put_array(content, name, values[row])
    results: list[RankResult] = decode_value(list[RankResult], contents)
    return results


def stack(ranks: Sequence[RankResult]) -> dict[str, Numbers]:
    """Return the arrays of a record: each series of all ranks, and the JSON of the rest."""
    import numpy as np

    contents = []
    rows: dict[str, dict[int, Numbers]] = {}  # by the series and the position of the rank
    for position, rank in enumerate(ranks):
        content = asdict(rank)
        series: dict[str, Numbers] = {}
        _take_arrays(content, "", series)
        contents.append(content)
        for name, values in series.items():
            rows.setdefault(name, {})[position] = values
    arrays: dict[str, Numbers] = {RANKS: np.frombuffer(seal.json_text(contents), dtype=np.uint8)}
    for name, by_position in rows.items():
        longest = max(map(len, by_position.values()))
        dtype = next(iter(by_position.values())).dtype
        arrays[name] = np.full((len(ranks), longest), np.nan, dtype=dtype)
        for position, values in by_position.items():
            arrays[name][position, : len(values)] = values
    return arrays


def _take_arrays(content: dict[str, Any], prefix: str, arrays: dict[str, Numbers]) -> None:
    """Take the arrays out of JSON, by the way to them; their lengths stay in their place."""
    import numpy as np

    for key, value in content.items():
        if isinstance(value, dict):
            _take_arrays(value, f"{prefix}{key}.", arrays)
        elif isinstance(value, np.ndarray):
            arrays[f"{prefix}{key}"] = value
            content[key] = len(value)


def _put_array(content: Any, name: str, values: Numbers) -> None:
    """Put an array back in the place of its length: undoes `_take_arrays`. Not every rank has one."""
    *way, key = name.split(".")
    for part in way:
        content = content.get(part) or {}
    if key in content and content[key] is not None:
        content[key] = values[: content[key]]


def copy_record(path: Path, folder: Path) -> None:
    """Copy a record with its arrays into a folder. Raises BadFile."""
    described = decode_file(_Header, path, RECORD_FORMAT).arrays
    shutil.copyfile(path, folder / path.name)
    shutil.copyfile(path.with_name(described.file), folder / described.file)
