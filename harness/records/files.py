"""Writes records and reads them back, checked.

A record is a JSON header and a file of columns beside it (`harness.records.columns`). The columns
are written first, and read when they are first looked at.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from harness.core.errors import BadFile, one_line
from harness.core.paths import TrialFolder, write_atomically
from harness.records import seal
from harness.records.columns import SUFFIX as COLUMNS_SUFFIX
from harness.records.columns import (
    Column,
    ColumnFile,
    Opener,
    beside,
    describe_columns,
    in_memory,
    put_series,
    read_columns,
    take_series,
    text_column,
    write_columns,
)
from harness.records.consistency import header_problem, rank_problem, record_problem
from harness.records.decode import (
    FileFormat,
    OpenedFile,
    check_schema,
    decode_value,
    open_content,
    parse_json,
    prepare_types,
    read_json,
    with_our_schema,
)
from harness.records.deferred import Content, Deferred
from harness.records.environment import Environment
from harness.records.record import (
    SCHEMA,
    AcrossRanks,
    Rank0Report,
    RankResult,
    Ranks,
    Record,
    RunSettings,
)
from harness.records.series import Numbers, Series
from harness.records.shared import share_parts, shared_part, without_parts
from harness.spec.cell import Cell, Trial

FIRST_MAJOR = 5  # of the schemas that can be read; its records hold their series themselves
RECORD_FORMAT = FileFormat(
    name="record",
    schema=SCHEMA,
    remedy="move it away and run the sweep again to measure it anew",
    sealed_since=1,
    earlier_major=FIRST_MAJOR,
)
# Without a schema: the same version of the harness reads it, minutes later.
RANK_RESULT_FORMAT = FileFormat(
    name="rank's result", remedy="harness run --force measures it again", sealed_since=0
)
# The columns of a rank are all read: at once, because a shared file system takes its time for each.
RANK_BUFFER_BYTES = 2**18
RECORD_FILE = TrialFolder(Path()).record_path.name
TRIAL_ID = re.compile(r".+-[0-9a-f]{10}-s-?\d+-r\d+")  # the name of a trial's folder

# Columns beside those of `take_series`.
MEAN_LOSS = "mean_loss"  # over ranks, of each step
RANKS = "ranks"  # the JSON of the results of all ranks, with the number of values for each series

# Kept headers: what is large, or no plain value, is decoded when it is read.
RECORD = Deferred(
    Record, later=("trial", "loss", "ranks", "rank0", "phases", "settings", "columns")
)
RANK0_REPORT = Deferred(Rank0Report, later=("environment", "collectives", "confusions"))
NOTHING = msgspec.Raw(msgspec.msgpack.encode(None))


@dataclass(frozen=True, kw_only=True)
class CheckedHeader:
    """The header of a record of our schema that was read and has passed all checks."""

    content: bytes  # without its schema, its seal and its shared parts, as MessagePack
    parts: tuple[bytes | None, ...]  # those parts, as `without_parts` returns them


@dataclass(frozen=True, kw_only=True)
class ColumnParts:
    """What the header of a record says of what lies in its columns."""

    ranks: AcrossRanks
    columns: ColumnFile | None = None  # None where there are none


def write_record(path: Path, record: Record | RankResult, *, durable: bool = True) -> None:
    """Write a record, or a rank's part of one: its columns, then the sealed header.

    Raises ValueError for what JSON can't hold. NaN may well occur in a Series. Anywhere else it
    would be a figure that readers take for a measurement.
    """
    content = asdict(record)
    columns: dict[str, Numbers | list[Numbers]] = {}
    if isinstance(record, RankResult):
        columns.update(take_series([content]))
    else:
        content["ranks"] = asdict(record.ranks.across)
        if content.pop("loss") is not None:
            assert record.loss is not None
            columns[MEAN_LOSS] = record.loss.unpack()
        results = [asdict(result) for result in record.ranks]
        columns.update(take_series(results))
        if results:
            columns[RANKS] = text_column(seal.json_text(results))
    described = describe_columns(path, columns) if columns else None
    content["columns"] = None if described is None else asdict(described)
    header = seal.sealed_text(content)  # before anything is written: it may be refused
    if described is not None:
        write_columns(path.with_name(described.file), columns, durable=durable)
    write_atomically(path, header, durable=durable)


def read_record(path: Path) -> Record:
    """Read the header of a record; its ranks and losses are read when they are first looked at.

    Raises BadFile for a file that is missing, incomplete, of a major schema that can't be read or
    changed after it was written, for a header that contradicts itself, and for the record of
    another trial than its folder is named after. Ranks and losses raise it then for columns that
    are missing or other than the header says, and for figures that they contradict.
    """
    return _record_of(read_json(path, RECORD_FORMAT), path, beside(path))


def read_checked(path: Path) -> tuple[Record, CheckedHeader | None]:
    """Read a record as `read_record` does, and return its header to be kept as well.

    There is none to keep of a record of another major schema than ours, or of a later minor one.
    """
    content = read_json(path, RECORD_FORMAT)
    header = None
    # Before it is decoded, which replaces parts of it.
    if isinstance(content, dict) and _is_read_whole(content, path):
        with suppress(OverflowError):  # MessagePack has no whole numbers beyond 64 bits
            rest, parts = without_parts(content)
            del rest["schema"]
            rest.pop(seal.KEY, None)
            header = CheckedHeader(content=msgspec.msgpack.encode(rest), parts=parts)
    return _record_of(content, path, beside(path)), header


def _is_read_whole(content: Mapping[str, Any], path: Path) -> bool:
    """Return whether a record's keys are those of our schema or an earlier one of the same major.

    Raises BadFile for a schema that can't be read.
    """
    if check_schema(content, str(path), RECORD_FORMAT):
        return False
    return str(content["schema"]).partition(".")[0] == SCHEMA.partition(".")[0]


class TrialNumbers(msgspec.Struct):
    """What a kept header says of the trial besides its cell."""

    seed: int
    repeat: int = 0


class KeptHeader:
    """The header of a record that was kept: what is large is decoded when it is first asked for."""

    def __init__(
        self, content: bytes | msgspec.Raw, parts: Sequence[bytes | None], path: str
    ) -> None:
        """Take what a CheckedHeader has; columns lie beside `path`."""
        self.content = content
        self.cell, self.environment, self.settings = parts
        self.path = path  # a text, as a Path takes longer to make than all else

    def record(self) -> Record:
        """Return the record, which equals that of `read_record`."""
        values, self.later = RECORD.decode(self.content)
        contents: dict[str, Content] = {
            **self.later,
            "trial": self._trial,
            "rank0": self._rank0_report,
            "settings": lambda: shared_part(RunSettings, self.settings),
            "loss": lambda: self._columns.mean_loss(),
            "ranks": lambda: Ranks(lambda: self._columns.rank_results(record), self._across()),
        }
        record = RECORD.make(values, contents)
        return record

    @cached_property
    def _columns(self) -> _Columns:
        described = _decoder(ColumnFile | None).decode(self.later["columns"])
        path = Path(self.path)
        return _Columns(described, path, beside(path))

    def _across(self) -> AcrossRanks:
        across: AcrossRanks = _decoder(AcrossRanks).decode(self.later["ranks"])
        return across

    def _trial(self) -> Trial:
        """Return the trial with its cell, which is kept for all that share it."""
        numbers = _decoder(TrialNumbers).decode(self.later["trial"])
        return Trial(cell=shared_part(Cell, self.cell), seed=numbers.seed, repeat=numbers.repeat)

    def _rank0_report(self) -> Rank0Report | None:
        """Return what rank 0 reported, with its environment, which is kept for all that share it."""
        content = self.later["rank0"]
        if content == NOTHING:
            return None
        values, later = RANK0_REPORT.decode(content)
        values["environment"] = shared_part(Environment, self.environment)
        return RANK0_REPORT.make(values, later)


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder of MessagePack, which takes longer to make than a header to decode."""
    prepare_types(kind)
    return msgspec.msgpack.Decoder(kind)


def read_record_if_exists(path: Path) -> Record | None:
    """Read a record, None where there is no file; raises BadFile as `read_record` does."""
    if not path.exists():
        return None
    return read_record(path)


def parse_record(text: str | bytes, source: str, fetch: Callable[[str], bytes]) -> Record:
    """Decode the header of a record, such as one from MLflow; raises BadFile as `read_record` does.

    `source` is what errors call the text. `fetch` returns the content of a file beside it, by its
    name, when the columns are needed; it may raise OSError.
    """
    return _record_of(parse_json(text, source, RECORD_FORMAT), source, in_memory(fetch))


def _record_of(content: Any, source: Path | str, open_file: Opener) -> Record:
    """Return a record that agrees with itself and with its folder; raises BadFile."""
    opened = open_content(content, str(source), RECORD_FORMAT)
    try:
        if opened.major == FIRST_MAJOR:
            record: Record = decode_value(Record, with_our_schema(Record, opened.content, SCHEMA))
            problem = record_problem(record)
        else:
            record = _with_columns(opened, source, open_file)
            problem = header_problem(record)
    except ValueError as error:
        problem = one_line(error)
    else:
        problem = problem or _misplacement(record.trial, source)
    if problem is not None:
        raise _invalid(source, problem)
    return record


def _invalid(source: Path | str, problem: str) -> BadFile:
    """Return the error for a record that contradicts itself."""
    return RECORD_FORMAT.error(source, f"not a valid record: {problem}")


def _with_columns(opened: OpenedFile, source: Path | str, open_file: Opener) -> Record:
    """Return a record whose ranks and losses are read from its columns when they are needed.

    Raises ValueError for a header that has not the right types.
    """
    content = with_our_schema(Record, opened.content, SCHEMA)
    if not opened.is_later_minor:
        share_parts(content)
    decode: Callable[[Any, Any], Any] = partial(
        decode_value, ignore_unknown_fields=opened.is_later_minor
    )
    entries = {name: content.pop(name) for name in ("ranks", "columns") if name in content}
    parts: ColumnParts = decode(ColumnParts, entries)
    columns = _Columns(parts.columns, source, open_file, is_later_minor=opened.is_later_minor)
    content["ranks"] = Ranks(lambda: columns.rank_results(record), parts.ranks)
    content["loss"] = columns.mean_loss()
    record: Record = decode(Record, content)
    return record


class _Columns:
    """The columns beside the header of one record, each read when it is needed."""

    def __init__(
        self,
        described: ColumnFile | None,
        source: Path | str,
        open_file: Opener,
        *,
        is_later_minor: bool = False,
    ) -> None:
        self.described = described
        self.source = source
        self.open_file = open_file
        self.is_later_minor = is_later_minor

    @property
    def columns(self) -> Mapping[str, Column]:
        """What the header says of each column; nothing where there are none."""
        return {} if self.described is None else self.described.columns

    def read(self, names: Collection[str]) -> dict[str, Numbers]:
        """Return some columns; raises BadFile."""
        described = self.described
        assert described is not None
        try:
            return read_columns(self.open_file, described, names)
        except OSError as error:
            raise RECORD_FORMAT.unavailable(_location(self.source, described), error) from None
        except ValueError as error:
            raise RECORD_FORMAT.error(_location(self.source, described), str(error)) from None

    def mean_loss(self) -> Series | None:
        """Return the mean loss over ranks, which is read when it is unpacked; None without any."""
        column = self.columns.get(MEAN_LOSS)
        if column is None:
            return None
        return Series(column.dtype, column.count, lambda: self.read([MEAN_LOSS])[MEAN_LOSS])

    def rank_results(self, record: Record) -> list[RankResult]:
        """Return the results of all ranks, which the header must agree with; raises BadFile."""
        results = []
        loss = record.loss
        if RANKS in self.columns:
            columns = self.read(self.columns)
            if MEAN_LOSS in columns:  # here, as the checks below would open the file again for it
                loss = Series.of(columns.pop(MEAN_LOSS))
            results = _rank_results(columns, self.source, is_later_minor=self.is_later_minor)
        whole = replace(record, ranks=Ranks.of(results), loss=loss)
        problem = record_problem(whole)
        problem = problem or _across_problem(record.ranks.across, whole.ranks.across)
        if problem is not None:
            raise _invalid(self.source, problem)
        return results


def _location(source: Path | str, described: ColumnFile) -> str:
    """Return what errors call the file of columns."""
    if isinstance(source, Path):
        return str(source.with_name(Path(described.file).name))
    return f"{source}: {described.file}"


def _rank_results(
    columns: dict[str, Numbers], source: Path | str, *, is_later_minor: bool
) -> list[RankResult]:
    """Return the results of ranks, of which the columns have the numbers; raises BadFile."""
    text = columns.pop(RANKS).tobytes()
    contents = parse_json(text, source, RECORD_FORMAT)
    try:
        put_series(contents, columns)
        results: list[RankResult] = decode_value(
            list[RankResult], contents, ignore_unknown_fields=is_later_minor
        )
    except ValueError as error:
        raise _invalid(source, f"ranks{one_line(error)}") from None
    return results


def _across_problem(header: AcrossRanks, computed: AcrossRanks) -> str | None:
    """Return which figure of the header is not what the ranks come to.

    Telemetry is left out: other versions of NumPy round its means in another way.
    """
    for entry in fields(AcrossRanks):
        recorded, expected = getattr(header, entry.name), getattr(computed, entry.name)
        if entry.name != "telemetry" and _as_json(recorded) != _as_json(expected):
            return f"ranks.{entry.name}: found another value than that of its ranks"
    return None


def _as_json(value: Any) -> bytes:
    """Return a value as JSON, in which tuples and lists are the same."""
    return msgspec.json.encode(value, order="sorted")


def _misplacement(trial: Trial, source: Path | str) -> str | None:
    """Return whether the record of a trial lies in the folder of another one, None if not.

    A record may lie anywhere else, as in a folder of records that somebody has collected.
    """
    if not isinstance(source, Path) or source.name != RECORD_FILE:
        return None
    folder = source.absolute().parent.name
    if folder == trial.id or not TRIAL_ID.fullmatch(folder):
        return None
    return f"trial: found {trial.id}; allowed: {folder}, whose folder it lies in"


def read_rank_result(path: Path) -> RankResult:
    """Read what one rank left.

    Raises BadFile for a file that is missing, incomplete or changed after it was written.
    """
    opened = open_content(read_json(path, RANK_RESULT_FORMAT), str(path), RANK_RESULT_FORMAT)
    try:
        if not isinstance(opened.content, dict):
            raise ValueError("found no keys; allowed: keys")
        content = dict(opened.content)
        described: ColumnFile | None = decode_value(ColumnFile | None, content.pop("columns", None))
        if described is not None:
            open_file = beside(path, buffer_bytes=RANK_BUFFER_BYTES)
            put_series([content], read_columns(open_file, described, described.columns))
        result: RankResult = decode_value(RankResult, content)
        problem = rank_problem(result)
    except OSError as error:
        raise RANK_RESULT_FORMAT.unavailable(path, error) from None
    except ValueError as error:
        problem = one_line(error)
    if problem is not None:
        raise RANK_RESULT_FORMAT.error(path, f"not a valid rank's result: {problem}")
    return result


def copy_record(path: Path, folder: Path, clean: Callable[[str], str]) -> None:
    """Copy a record with its columns into a folder, without secrets and with seals that hold.

    `clean` removes secrets from a text. A record without secrets stays as it is. Raises BadFile.
    """
    text = path.read_text(encoding="utf-8")
    content = open_content(parse_json(text, path, RECORD_FORMAT), str(path), RECORD_FORMAT).content
    texts = text
    described = None
    if content.get("columns") is not None:
        described = decode_value(ColumnFile, content["columns"])
        if RANKS in described.columns:
            ranks = read_columns(beside(path), described, [RANKS])[RANKS]
            texts += ranks.tobytes().decode("utf-8")
    if clean(texts) == texts:
        for name in (path.name, *([described.file] if described else [])):
            shutil.copyfile(path.with_name(name), folder / name)
        return
    record = read_record(path)
    results = seal.cleaned([asdict(result) for result in record.ranks], clean)
    header: Record = decode_value(Record, seal.cleaned(asdict(record), clean))
    ranks_without_secrets = Ranks.of(decode_value(list[RankResult], results))
    write_record(folder / path.name, replace(header, ranks=ranks_without_secrets))


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
