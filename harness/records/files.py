"""Writes records and reads them back, checked.

A record is a small JSON header that commands read. Its numbers are in a file next to it, of which
the header has the name and for each column the type, the number of values and the SHA-256 of their
bytes. `numpy.load` opens the file. The values of a column are those of rank 0, then those of rank
1, and so on: shape (ranks, steps) where all ranks have equally many, else one row.

Nothing is compressed. Timings are noise in most of their bits, so that zlib at its fastest takes
20 times as long for a tenth of the size, and a file that is not compressed can't unpack to more
than its size.

The name of the file has a digest of its content. So a header never names a file that was written
for another one: the columns are written first, then the header replaces the last one. They are read
when they are first looked at.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar, cast

import msgspec
from msgspec import Meta, Raw

from harness.core.errors import BadFile, one_line
from harness.core.paths import TRIAL_ID, TrialFolder, write_atomically, write_atomically_by
from harness.core.validation import decode_json, decode_value
from harness.records import seal
from harness.records.decode import (
    FileFormat,
    decode_text,
    parse_content,
    parse_json,
    read_bytes,
    read_content,
    read_json,
)
from harness.records.environment import Environment
from harness.records.record import (
    SCHEMA,
    AcrossRanks,
    Outcome,
    RankResult,
    RankResults,
    Record,
    RunSettings,
)
from harness.records.series import DType, Numbers, Series
from harness.spec.cell import Cell, Repeat, Seed, Trial

T = TypeVar("T")

COLUMNS_SUFFIX = ".npz"
FILE_NAME = re.compile(r"[^/\0]+-[0-9a-f]{12}\.npz")
MAX_VALUES = 2**36  # of a column; 4,096 ranks with as many steps as a trial may have
RECENT_RANKS = 2  # records whose ranks stay in memory once they have been read
LARGEST_HEADER = 2**16  # bytes before the values of a column; NumPy writes 128
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
# The columns of a rank are all read: at once, because a shared file system takes its time for each.
RANK_BUFFER_BYTES = 2**18
RECORD_FILE = TrialFolder(Path()).record_path.name

OUTCOME_FIELDS = [field.name for field in fields(Outcome)]
NULL = Raw(b"null")
# Columns besides those of `take_series`.
MEAN_LOSS = "mean_loss"  # over ranks, of each step
RANKS = "ranks"  # the JSON of the results of all ranks, with the number of values for each series

# Opens the file of columns of that name; raises OSError.
Opener = Callable[[str], BinaryIO]


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """What a header says of one column.

    It is most of what there is in a header, and Python's collector leaves a Struct of texts and
    numbers alone.
    """

    dtype: DType
    count: Annotated[int, Meta(ge=0, le=MAX_VALUES)]  # of values, over all ranks
    sha256: str  # of their bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnFile:
    """What a header says of the file of columns next to it."""

    file: str  # its name; it is in the header's folder
    columns: Mapping[str, Column]

    def __post_init__(self) -> None:
        """Refuse a name that is no file's in that folder, with ValueError."""
        if not FILE_NAME.fullmatch(self.file):
            raise ValueError(
                f"found the file {self.file!r}; allowed: a name that ends in {COLUMNS_SUFFIX}"
            )


def describe_columns(
    header_path: Path, columns: Mapping[str, Numbers | list[Numbers]]
) -> ColumnFile:
    """Return what the header at `header_path` says of its columns.

    A column is an array, or a list of arrays, one a rank. Raises ValueError for ranks of unlike
    types.
    """
    described: dict[str, Column] = {}
    for name, values in columns.items():
        parts = _parts(values)
        dtypes = {part.dtype.str for part in parts}
        if len(dtypes) != 1:
            raise ValueError(f"column {name}: found {', '.join(sorted(dtypes))}; allowed: one type")
        of_values = hashlib.sha256()
        for part in parts:
            of_values.update(part.data)
        described[name] = Column(
            dtype=cast("DType", dtypes.pop()),
            count=sum(part.size for part in parts),
            sha256=of_values.hexdigest(),
        )
    digest = hashlib.sha256(repr(described).encode()).hexdigest()[:12]
    return ColumnFile(file=f"{header_path.stem}-{digest}{COLUMNS_SUFFIX}", columns=described)


def _parts(values: Numbers | list[Numbers]) -> list[Numbers]:
    """Return the arrays that a column is made of."""
    return values if isinstance(values, list) else [values]


def _write_npz(file: BinaryIO, columns: Mapping[str, Numbers | list[Numbers]]) -> None:
    """Write what `numpy.load` reads.

    `numpy.savez` would need each column in one piece, and the numbers of a thousand ranks may fill
    most of the memory. Members have no date, so that equal columns make equal files.
    """
    import numpy as np

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, values in columns.items():
            parts = _parts(values)
            sizes = [part.size for part in parts]
            shape: tuple[int, ...] = (sum(sizes),)
            if isinstance(values, list) and len(set(sizes)) == 1:
                shape = (len(sizes), sizes[0])  # (ranks, values), where all have equally many
            header = {"descr": parts[0].dtype.str, "fortran_order": False, "shape": shape}
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, header)
                for part in parts:
                    member.write(part.tobytes())


def read_columns(
    open_file: Opener, described: ColumnFile, names: Iterable[str]
) -> dict[str, Numbers]:
    """Return some columns, each of shape (values,), read-only.

    Raises ValueError for a file that is not the one that the header describes, and OSError.
    """
    columns = {}
    with open_file(described.file) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                for name in names:
                    columns[name] = _read_column(archive, name, described.columns[name])
        # All that zipfile raises for a damaged file.
        except (zipfile.BadZipFile, EOFError, KeyError, NotImplementedError, RuntimeError) as error:
            raise ValueError(f"can't be read as columns: {error}") from None
    return columns


def _read_column(archive: zipfile.ZipFile, name: str, column: Column) -> Numbers:
    """Return the values of a column; raises ValueError unless they are those described."""
    import numpy as np

    dtype = np.dtype(column.dtype)
    size = column.count * dtype.itemsize
    info = archive.getinfo(f"{name}.npy")
    # What is not compressed is no larger than the file, so that no small file fills the memory.
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise ValueError(f"column {name}: found it compressed; allowed: uncompressed")
    header_size = info.file_size - size
    if not 0 <= header_size <= LARGEST_HEADER:
        raise ValueError(
            f"column {name}: found {info.file_size} bytes; allowed: {size} and a header"
        )
    content = archive.read(info)
    values = memoryview(content)[header_size:]
    digest = hashlib.sha256(values).hexdigest()
    if len(values) != size or digest != column.sha256:
        raise ValueError(
            f"column {name}: found the SHA-256 {digest[:12]}…; allowed: {column.sha256[:12]}…, as"
            " in its record"
        )
    return np.frombuffer(values, dtype=dtype)


def next_to(header_path: Path, *, buffer_bytes: int = io.DEFAULT_BUFFER_SIZE) -> Opener:
    """Return what opens the files next to a header, reading `buffer_bytes` at once."""
    return lambda name: header_path.with_name(name).open("rb", buffer_bytes)


def take_series(results: Sequence[dict[str, Any]]) -> dict[str, list[Numbers]]:
    """Take the series out of the results of ranks, in the order of the ranks.

    Returns the arrays of each column, one a rank. In the results, which `dataclasses.asdict` has
    made, the number of values stays in place of a series.
    """
    columns: dict[str, list[Numbers]] = {}
    for result in results:
        for slot in _series_slots(result):
            series = slot.holder[slot.key]
            columns.setdefault(slot.column, []).append(series.unpack())
            slot.holder[slot.key] = series.count
    return columns


def put_series(results: Sequence[Any], columns: Mapping[str, Numbers]) -> None:
    """Put the values of columns back into the JSON results of ranks: undoes `take_series`.

    Raises ValueError for results that do not come to as many values as a column has.
    """
    used = dict.fromkeys(columns, 0)
    for index, result in enumerate(results):
        for slot in _series_slots(result):
            count = slot.holder[slot.key]
            if slot.column not in used or not isinstance(count, int) or count < 0:
                raise ValueError(
                    f"[{index}].{slot.column}: found {count!r}; allowed: a column's part"
                )
            start = used[slot.column]
            used[slot.column] = start + count
            slot.holder[slot.key] = Series.of(columns[slot.column][start : start + count])
    for name, count in used.items():
        if count != len(columns[name]):
            raise ValueError(f": {name}: found {count} values; allowed: {len(columns[name])}")


@dataclass(frozen=True, kw_only=True)
class _Slot:
    """Where the result of a rank has a series, or the number of its values."""

    column: str  # the name of its column
    holder: dict[str, Any]
    key: str


def _series_slots(result: Any) -> list[_Slot]:
    """Return where the result of a rank has series that are not None."""
    if not isinstance(result, dict):
        return []
    slots = [
        _Slot(column="loss", holder=result, key="loss"),
        _Slot(column="step_seconds", holder=result, key="step_seconds"),
    ]
    groups = {"step_phases": result.get("step_phases")}
    telemetry = result.get("telemetry")
    if isinstance(telemetry, dict):
        column = "telemetry.sample_times"
        slots.append(_Slot(column=column, holder=telemetry, key="sample_times"))
        groups["telemetry.readings"] = telemetry.get("readings")
    for group, holder in groups.items():
        if isinstance(holder, dict):
            slots += [_Slot(column=f"{group}.{key}", holder=holder, key=key) for key in holder]
    return [slot for slot in slots if slot.holder.get(slot.key) is not None]


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedAndRepeat:
    """A trial without its cell."""

    seed: Seed
    repeat: Repeat


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRecord(Outcome):
    """A record as it is in its header, without the parts that `CommonParts` decodes."""

    trial: SeedAndRepeat
    ranks: AcrossRanks
    columns: ColumnFile | None = None  # that have ranks and losses; None where there are none


def write_record(path: Path, record: Record | RankResult, *, durable: bool = True) -> None:
    """Write a record, or a rank's part of one: its columns, then the sealed header.

    Raises ValueError for what JSON can't hold. NaN may well occur in a Series. Anywhere else it
    would be a figure that readers take for a measurement.
    """
    content: dict[str, Any] = asdict(record)
    columns: dict[str, Numbers | list[Numbers]] = {}
    if isinstance(record, RankResult):
        columns.update(take_series([content]))
    else:
        content = {"schema": SCHEMA, **content}
        content["ranks"] = asdict(record.ranks.across)
        if content.pop("loss") is not None:
            assert record.loss is not None
            columns[MEAN_LOSS] = record.loss.unpack()
        results = [asdict(result) for result in record.ranks]
        columns.update(take_series(results))
        if results:
            import numpy as np

            columns[RANKS] = np.frombuffer(seal.json_text(results), dtype=np.uint8)
    described = describe_columns(path, columns) if columns else None
    content["columns"] = msgspec.to_builtins(described)
    header = seal.sealed_text(content)  # before anything is written: it may be refused
    if described is not None:
        columns_path = path.with_name(described.file)
        write_atomically_by(columns_path, lambda file: _write_npz(file, columns), durable=durable)
    write_atomically(path, header, durable=durable)


class _CellText(msgspec.Struct):
    """The cell of a trial, as JSON."""

    cell: Raw = NULL


class _CommonTexts(msgspec.Struct):
    """What the header of a record has in common with others of its sweep, as JSON."""

    trial: _CellText
    environment: Raw = NULL
    settings: Raw = NULL


class _CellTexts(msgspec.Struct):
    """The cells of a sweep, as JSON."""

    cells: list[Raw]


class CommonParts:
    """Parts that records of a sweep have in common, each decoded once.

    Cell, environment and settings are most of a header. Equal ones are one object, so that thousands
    of records are read sooner and take less memory.
    """

    def __init__(self) -> None:
        """Begin with no part."""
        self._decoded: dict[tuple[type, bytes], Any] = {}  # by what a part is, and its JSON

    def decode(self, kind: type[T], text: Raw, *key: str | int) -> T:
        """Return the JSON of a part as a `kind`; raises InvalidValue.

        `key` is the way to the part in its file.
        """
        content = bytes(text)
        part: T | None = self._decoded.get((kind, content))
        if part is not None:
            return part
        try:
            part = decode_json(kind, content)
        except (msgspec.DecodeError, ValueError):
            part = decode_value(kind, msgspec.json.decode(content), at=key)  # says what is wrong
        self._decoded[kind, content] = part
        return part

    def decode_cells(self, text: bytes) -> list[Cell]:
        """Return the cells in the file of a sweep; raises InvalidValue."""
        cells = decode_json(_CellTexts, text).cells
        return [self.decode(Cell, cell, "cells", index) for index, cell in enumerate(cells)]

    def decode_optional(self, kind: type[T], text: Raw, *key: str | int) -> T | None:
        """Return a part as `decode` does, None for null."""
        return None if bytes(text) == b"null" else self.decode(kind, text, *key)


def read_record(path: Path, common: CommonParts | None = None) -> Record:
    """Read the header of a record; its ranks and losses are read when they are first looked at.

    Records that are read with the same `common` share what they have in common. Raises BadFile for a
    file that is missing, incomplete, of a major schema that can't be read or changed after it was
    written, for a header that contradicts itself, and for the record of another trial than its folder
    is named after. Ranks and losses raise it then for columns that are missing or other than the
    header says, and for figures that they contradict.
    """
    return _record_of(read_bytes(path, RECORD_FORMAT), path, next_to(path), common)


def read_record_if_exists(path: Path, common: CommonParts | None = None) -> Record | None:
    """Read a record, None where there is no file; raises BadFile as `read_record` does."""
    if not path.exists():
        return None
    return read_record(path, common)


def parse_record(text: str | bytes, source: str, fetch: Callable[[str], bytes]) -> Record:
    """Decode the header of a record, such as one from MLflow; raises BadFile as `read_record` does.

    `source` is what errors call the text. `fetch` returns the content of a file next to it, by its
    name, when the columns are needed; it may raise OSError.
    """
    return _record_of(text, source, lambda name: io.BytesIO(fetch(name)))


def _record_of(
    text: str | bytes,
    source: Path | str,
    open_file: Opener,
    common: CommonParts | None = None,
) -> Record:
    """Return the record whose header has this text.

    Its ranks and losses are read from its columns when they are needed. Raises BadFile unless it
    agrees with itself and with its folder.
    """
    stored = decode_text(StoredRecord, text, source, RECORD_FORMAT)
    texts = decode_json(_CommonTexts, text)
    common = common or CommonParts()
    try:
        cell = common.decode(Cell, texts.trial.cell, "trial", "cell")
        environment = common.decode_optional(Environment, texts.environment, "environment")
        settings = common.decode_optional(RunSettings, texts.settings, "settings")
    except (msgspec.DecodeError, ValueError) as error:
        raise RECORD_FORMAT.invalid(source, error) from None
    columns = _Columns(stored, source, open_file)
    record = Record(
        **{name: getattr(stored, name) for name in OUTCOME_FIELDS},
        trial=Trial(cell=cell, seed=stored.trial.seed, repeat=stored.trial.repeat),
        environment=environment,
        settings=settings,
        ranks=RankResults(columns.ranks, stored.ranks),
        loss=columns.mean_loss(),
    )
    # A record may be anywhere, as in a folder of records that somebody has collected, except in the
    # folder of another trial.
    if isinstance(source, Path) and source.name == RECORD_FILE:
        folder = source.parent.name or source.absolute().parent.name
        trial_id = record.trial.id
        if folder != trial_id and TRIAL_ID.fullmatch(folder):
            problem = f"trial: found {trial_id}; allowed: {folder}, whose folder it is in"
            raise RECORD_FORMAT.invalid(source, problem)
    return record


@lru_cache(maxsize=RECENT_RANKS)
def _ranks_of(columns: _Columns) -> list[RankResult]:
    """Return the ranks of a record on disk, which stay in memory for the last few records only."""
    return columns.rank_results()


class _Columns:
    """The columns of one record, each read when it is needed.

    It has no reference to its record: a cycle in each of thousands of records would be left to the
    garbage collector.
    """

    __slots__ = ("_described", "_open_file", "source")

    def __init__(
        self,
        stored: StoredRecord,
        source: Path | str,
        open_file: Opener,
    ) -> None:
        self._described = stored.columns  # None where there are none
        self.source = source
        self._open_file = open_file

    def read(self, names: Collection[str]) -> dict[str, Numbers]:
        """Return some columns; raises BadFile."""
        described = self._described
        assert described is not None
        try:
            return read_columns(self._open_file, described, names)
        except OSError as error:
            raise RECORD_FORMAT.unavailable(_location(self.source, described), error) from None
        except ValueError as error:
            raise RECORD_FORMAT.error(_location(self.source, described), str(error)) from None

    def mean_loss(self) -> Series | None:
        """Return the mean loss over ranks, which is read when it is unpacked; None without any."""
        column = None if self._described is None else self._described.columns.get(MEAN_LOSS)
        if column is None:
            return None
        return Series(column.dtype, column.count, self._read_mean_loss)

    def _read_mean_loss(self) -> Numbers:
        """Return the mean loss over ranks at each step, shape (steps,); raises BadFile."""
        return self.read([MEAN_LOSS])[MEAN_LOSS]

    def ranks(self) -> list[RankResult]:
        """Return the results of all ranks, which stay in memory for the last few records only."""
        return _ranks_of(self)

    def rank_results(self) -> list[RankResult]:
        """Return the results of all ranks, which are those of the record; raises BadFile."""
        described: Mapping[str, Column] = {}
        if self._described is not None:
            described = self._described.columns
        results: list[RankResult] = []
        if RANKS in described:
            columns = self.read(described.keys() - {MEAN_LOSS})
            contents = parse_json(columns.pop(RANKS).tobytes(), self.source, RECORD_FORMAT)
            try:
                put_series(contents, columns)
                results = decode_value(list[RankResult], contents)
            except ValueError as error:
                raise RECORD_FORMAT.invalid(self.source, f"ranks{one_line(error)}") from None
        return results


def _location(source: Path | str, described: ColumnFile) -> str:
    """Return what errors call the file of columns."""
    if isinstance(source, Path):
        return str(source.with_name(Path(described.file).name))
    return f"{source}: {described.file}"


def read_rank_result(path: Path) -> RankResult:
    """Read what one rank left.

    Raises BadFile for a file that is missing, incomplete or changed after it was written.
    """
    content = read_content(path, RANK_RESULT_FORMAT)
    try:
        if not isinstance(content, dict):
            raise ValueError("found no keys; allowed: keys")
        described: ColumnFile | None = decode_value(ColumnFile | None, content.pop("columns", None))
        if described is not None:
            open_file = next_to(path, buffer_bytes=RANK_BUFFER_BYTES)
            put_series([content], read_columns(open_file, described, described.columns))
        result: RankResult = decode_value(RankResult, content)
    except OSError as error:
        raise RANK_RESULT_FORMAT.unavailable(path, error) from None
    except ValueError as error:
        raise RANK_RESULT_FORMAT.invalid(path, one_line(error)) from None
    return result


def copy_record(path: Path, folder: Path) -> None:
    """Copy a record with its columns into a folder. Raises BadFile."""
    content = parse_content(path.read_text(encoding="utf-8"), path, RECORD_FORMAT)
    shutil.copyfile(path, folder / path.name)
    if content.get("columns") is not None:
        described = decode_value(ColumnFile, content["columns"])
        shutil.copyfile(path.with_name(described.file), folder / described.file)


def remove_unused_columns(folder: Path) -> None:
    """Remove files of columns that no record in a trial's folder names.

    A process that was killed leaves one, and so does a record that another attempt replaced.
    Nothing is removed where a record can't be read: it may name any of them.
    """
    paths = list(folder.glob(f"*{COLUMNS_SUFFIX}"))
    if len(paths) < 2 and (folder / RECORD_FILE).exists():
        return
    used = set()
    try:
        for header_path in folder.glob("*.json"):
            content = read_json(header_path, RECORD_FORMAT)
            if isinstance(content, dict) and isinstance(content.get("columns"), dict):
                used.add(content["columns"].get("file"))
    except BadFile:
        return
    for path in paths:
        if path.name not in used:
            path.unlink(missing_ok=True)
