"""Writes records and reads them back, checked.

A record is a JSON header and a file of columns next to it (`harness.records.columns`). The columns
are written first, and read when they are first looked at.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.core.errors import BadFile, one_line
from harness.core.paths import TrialFolder, write_atomically
from harness.core.validation import decode_value
from harness.records import seal
from harness.records.columns import SUFFIX as COLUMNS_SUFFIX
from harness.records.columns import (
    Column,
    ColumnFile,
    Opener,
    describe_columns,
    in_memory,
    next_to,
    put_series,
    read_columns,
    take_series,
    text_column,
    write_columns,
)
from harness.records.consistency import header_problem, rank_problem, ranks_problem
from harness.records.decode import (
    FileFormat,
    checked_content,
    parse_json,
    read_json,
)
from harness.records.record import SCHEMA, AcrossRanks, RankResult, RankResults, Record
from harness.records.series import Numbers, Series
from harness.spec.cell import Trial

RECORD_FORMAT = FileFormat(
    name="record",
    schema=SCHEMA,
    remedy="move it away and run the sweep again to measure it anew",
    is_sealed=True,
)
# Without a schema: the same version of the harness reads it, minutes later.
RANK_RESULT_FORMAT = FileFormat(
    name="rank's result", remedy="harness run --force measures it again", is_sealed=True
)
# The columns of a rank are all read: at once, because a shared file system takes its time for each.
RANK_BUFFER_BYTES = 2**18
RECORD_FILE = TrialFolder(Path()).record_path.name
TRIAL_ID = re.compile(r".+-[0-9a-f]{10}-s-?\d+-r\d+")  # the name of a trial's folder

# Columns besides those of `take_series`.
MEAN_LOSS = "mean_loss"  # over ranks, of each step
RANKS = "ranks"  # the JSON of the results of all ranks, with the number of values for each series


@dataclass(frozen=True, kw_only=True)
class ColumnParts:
    """What the header of a record says of its columns."""

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
    another trial than its folder is named after. RankResults and losses raise it then for columns that
    are missing or other than the header says, and for figures that they contradict.
    """
    return _record_of(read_json(path, RECORD_FORMAT), path, next_to(path))


def read_record_if_exists(path: Path) -> Record | None:
    """Read a record, None where there is no file; raises BadFile as `read_record` does."""
    if not path.exists():
        return None
    return read_record(path)


def parse_record(text: str | bytes, source: str, fetch: Callable[[str], bytes]) -> Record:
    """Decode the header of a record, such as one from MLflow; raises BadFile as `read_record` does.

    `source` is what errors call the text. `fetch` returns the content of a file next to it, by its
    name, when the columns are needed; it may raise OSError.
    """
    return _record_of(parse_json(text, source, RECORD_FORMAT), source, in_memory(fetch))


def _record_of(content: Any, source: Path | str, open_file: Opener) -> Record:
    """Return a record whose ranks and losses are read from its columns when they are needed.

    Raises BadFile unless it agrees with itself and with its folder.
    """
    content = checked_content(content, source, RECORD_FORMAT)
    try:
        parts: ColumnParts = decode_value(ColumnParts, content)
        columns = _Columns(parts.columns, source, open_file)
        content["ranks"] = RankResults(lambda: columns.rank_results(record), parts.ranks)
        content["loss"] = columns.mean_loss()
        record: Record = decode_value(Record, content)
    except ValueError as error:
        raise RECORD_FORMAT.invalid(source, one_line(error)) from None
    problem = header_problem(record) or _misplacement(record.trial, source)
    if problem is not None:
        raise RECORD_FORMAT.invalid(source, problem)
    return record


class _Columns:
    """The columns of one record, each read when it is needed."""

    def __init__(
        self,
        described: ColumnFile | None,
        source: Path | str,
        open_file: Opener,
    ) -> None:
        self.described = described
        self.source = source
        self.open_file = open_file

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
        """Return the results of all ranks, which are those of the record; raises BadFile."""
        results: list[RankResult] = []
        if RANKS in self.columns:
            columns = self.read(self.columns.keys() - {MEAN_LOSS})
            contents = parse_json(columns.pop(RANKS).tobytes(), self.source, RECORD_FORMAT)
            try:
                put_series(contents, columns)
                results = decode_value(list[RankResult], contents)
            except ValueError as error:
                raise RECORD_FORMAT.invalid(self.source, f"ranks{one_line(error)}") from None
        problem = ranks_problem(record, results)
        if problem is not None:
            raise RECORD_FORMAT.invalid(self.source, problem)
        return results


def _location(source: Path | str, described: ColumnFile) -> str:
    """Return what errors call the file of columns."""
    if isinstance(source, Path):
        return str(source.with_name(Path(described.file).name))
    return f"{source}: {described.file}"


def _misplacement(trial: Trial, source: Path | str) -> str | None:
    """Return how the record of a trial is in the folder of another one, None if it is not.

    A record may be anywhere else, as in a folder of records that somebody has collected.
    """
    if not isinstance(source, Path) or source.name != RECORD_FILE:
        return None
    folder = source.absolute().parent.name
    if folder == trial.id or not TRIAL_ID.fullmatch(folder):
        return None
    return f"trial: found {trial.id}; allowed: {folder}, whose folder it is in"


def read_rank_result(path: Path) -> RankResult:
    """Read what one rank left.

    Raises BadFile for a file that is missing, incomplete or changed after it was written.
    """
    content = checked_content(read_json(path, RANK_RESULT_FORMAT), path, RANK_RESULT_FORMAT)
    try:
        if not isinstance(content, dict):
            raise ValueError("found no keys; allowed: keys")
        described: ColumnFile | None = decode_value(ColumnFile | None, content.pop("columns", None))
        if described is not None:
            open_file = next_to(path, buffer_bytes=RANK_BUFFER_BYTES)
            put_series([content], read_columns(open_file, described, described.columns))
        result: RankResult = decode_value(RankResult, content)
        problem = rank_problem(result)
    except OSError as error:
        raise RANK_RESULT_FORMAT.unavailable(path, error) from None
    except ValueError as error:
        problem = one_line(error)
    if problem is not None:
        raise RANK_RESULT_FORMAT.invalid(path, problem)
    return result


def copy_record(path: Path, folder: Path, clean: Callable[[str], str]) -> None:
    """Copy a record with its columns into a folder, without secrets and with seals that hold.

    `clean` removes secrets from a text. A record without secrets stays as it is. Raises BadFile.
    """
    text = path.read_text(encoding="utf-8")
    content = checked_content(parse_json(text, path, RECORD_FORMAT), path, RECORD_FORMAT)
    texts = text
    described = None
    if content.get("columns") is not None:
        described = decode_value(ColumnFile, content["columns"])
        if RANKS in described.columns:
            ranks = read_columns(next_to(path), described, [RANKS])[RANKS]
            texts += ranks.tobytes().decode("utf-8")
    if clean(texts) == texts:
        for name in (path.name, *([described.file] if described else [])):
            shutil.copyfile(path.with_name(name), folder / name)
        return
    record = read_record(path)
    results = seal.cleaned([asdict(result) for result in record.ranks], clean)
    header: Record = decode_value(Record, seal.cleaned(asdict(record), clean))
    ranks_without_secrets = RankResults.of(decode_value(list[RankResult], results))
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
