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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from harness.core.paths import write_atomically
from harness.core.validation import decode_json, decode_value
from harness.records.environment import Environment
from harness.records.format import FileFormat, decode_file, json_text, read_bytes, sealed_text
from harness.records.record import SCHEMA, Numbers, Outcome, RankResult, Record, RunSettings
from harness.sweep.cell import Cell, Repeat, Trial
from workloads.settings import Seed

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
OUTCOME = [field.name for field in fields(Outcome)]
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _RankHeader:
    """The header of what a rank leaves."""

    arrays: ArrayFile


def write_record(path: Path, record: Record, *, durable: bool = True) -> None:
    """Write a record: its arrays, then the sealed header.

    Raises ValueError for what JSON can't hold, such as a number that is NaN.
    """
    content = {"schema": SCHEMA, **asdict(record)}
    del content["load_ranks"]
    _write(path, content, record.ranks, durable=durable)


def write_rank_result(path: Path, result: RankResult) -> None:
    """Write what a rank leaves, as `write_record` does; it need not survive a loss of power."""
    _write(path, {}, [result], durable=False)


def _write(
    path: Path, content: Mapping[str, Any], ranks: Sequence[RankResult], *, durable: bool
) -> None:
    """Write a sealed header and the file of arrays that it names."""
    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, **stack(ranks))  # type: ignore[arg-type]  # no array is called `allow_pickle`
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest()
    name = f"{path.stem}-{digest[:12]}.npz"
    # Before anything is written: it may be refused.
    header = sealed_text({**content, "arrays": {"file": name, "sha256": digest}})
    write_atomically(path.with_name(name), buffer.getvalue(), durable=durable)
    write_atomically(path, header, durable=durable)


def read_record(path: Path) -> Record:
    """Read the header of a record; its ranks are read whenever they are looked at.

    Raises BadFile for a file that is missing, incomplete, of another schema or changed after it was
    written. Ranks and losses raise it for arrays that are missing or other than the header says.
    """
    header = decode_file(_Header, path, RECORD_FORMAT)
    outcome = {name: getattr(header, name) for name in OUTCOME}
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
    header = decode_file(_RankHeader, path, RANK_RESULT_FORMAT)
    (result,) = _read_ranks(path, header.arrays)
    return result


def _read_ranks(header_path: Path, described: ArrayFile) -> list[RankResult]:
    """Return the results of the ranks of a record; raises BadFile for other arrays than described."""
    import numpy as np

    path = header_path.with_name(Path(described.file).name)
    content = read_bytes(path, RECORD_FORMAT, MAX_ARRAY_BYTES)
    digest = hashlib.sha256(content).hexdigest()
    if digest != described.sha256:
        problem = f"found the SHA-256 {digest[:12]}…; allowed: {described.sha256[:12]}…"
        raise RECORD_FORMAT.error(path, f"{problem}, as {header_path.name} says")
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        arrays = dict(archive)
    contents = msgspec.json.decode(arrays.pop(RANKS).tobytes())
    for row, content_of_rank in enumerate(contents):
        for name, rows in arrays.items():
            _put_array(content_of_rank, name, rows[row])
    results: list[RankResult] = decode_value(list[RankResult], contents)
    return results


def stack(ranks: Sequence[RankResult]) -> dict[str, Numbers]:
    """Return the arrays of a record: each series of all ranks, and the JSON of the rest."""
    import numpy as np

    contents = [asdict(rank) for rank in ranks]
    series = [_take_arrays(content) for content in contents]
    text = json_text(contents)
    arrays: dict[str, Numbers] = {RANKS: np.frombuffer(text, dtype=np.uint8)}
    for name in set().union(*series):
        of_ranks = {row: of_rank[name] for row, of_rank in enumerate(series) if name in of_rank}
        longest = max(map(len, of_ranks.values()))
        dtype = next(iter(of_ranks.values())).dtype
        arrays[name] = np.full((len(ranks), longest), np.nan, dtype=dtype)
        for row, values in of_ranks.items():
            arrays[name][row, : len(values)] = values
    return dict(sorted(arrays.items()))


def _take_arrays(content: dict[str, Any], prefix: str = "") -> dict[str, Numbers]:
    """Take the arrays out of JSON, by the way to them; their lengths stay in their place."""
    import numpy as np

    arrays: dict[str, Numbers] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            arrays |= _take_arrays(value, f"{prefix}{key}.")
        elif isinstance(value, np.ndarray):
            arrays[f"{prefix}{key}"] = value
            content[key] = len(value)
    return arrays


def _put_array(content: Any, name: str, values: Numbers) -> None:
    """Put an array back in the place of its length: undoes `_take_arrays`. Not every rank has one."""
    *way, key = name.split(".")
    for part in way:
        content = content.get(part) or {}
    if content.get(key) is not None:
        content[key] = values[: content[key]]
