"""The file of columns next to a record: every step's numbers of every rank, in NumPy's .npz format.

A record is a small JSON header that commands read. Its numbers are in a file next to it, of which
the header has the name and for each column the type, the number of values and the SHA-256 of their
bytes. `numpy.load` opens the file. The values of a column are those of rank 0, then those of rank
1, and so on: shape (ranks, steps) where all ranks have equally many, else one row.

Nothing is compressed. Timings are noise in most of their bits, so that zlib at its fastest takes
20 times as long for a tenth of the size, and a file that is not compressed can't unpack to more
than its size.

The name of the file has a digest of its content. So a header never names a file that was written
for another one: the columns are written first, then the header replaces the last one.
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, cast

from msgspec import Meta

from harness.core.paths import write_atomically_by
from harness.records.series import DType, Numbers, Series

SUFFIX = ".npz"
FILE_NAME = re.compile(r"[^/\0]+-[0-9a-f]{12}\.npz")
MAX_VALUES = 2**36  # of a column; 4,096 ranks with as many steps as a trial may have
LARGEST_HEADER = 2**16  # bytes before the values of a column; NumPy writes 128

# Opens the file of columns of that name; raises OSError.
Opener = Callable[[str], BinaryIO]


@dataclass(frozen=True, kw_only=True)
class Column:
    """What a header says of one column."""

    dtype: DType
    count: Annotated[int, Meta(ge=0, le=MAX_VALUES)]  # of values, over all ranks
    sha256: str  # of their bytes


@dataclass(frozen=True, kw_only=True)
class ColumnFile:
    """What a header says of the file of columns next to it."""

    file: str  # its name; it is in the header's folder
    columns: Mapping[str, Column]

    def __post_init__(self) -> None:
        """Refuse a name that is no file's in that folder, with ValueError."""
        if not FILE_NAME.fullmatch(self.file):
            raise ValueError(f"found the file {self.file!r}; allowed: a name that ends in {SUFFIX}")


def describe_columns(
    header_path: Path, columns: Mapping[str, Numbers | list[Numbers]]
) -> ColumnFile:
    """Return what the header at `header_path` says of its columns.

    A column is an array, or a list of arrays, one a rank. Raises ValueError for ranks of unlike
    types.
    """
    described = {name: _describe(name, _parts(values)) for name, values in columns.items()}
    digest = hashlib.sha256(repr(described).encode()).hexdigest()[:12]
    return ColumnFile(file=f"{header_path.stem}-{digest}{SUFFIX}", columns=described)


def write_columns(
    path: Path, columns: Mapping[str, Numbers | list[Numbers]], *, durable: bool = True
) -> None:
    """Write the file of columns; raises StorageError.

    Nothing is copied: the numbers of a thousand ranks may fill most of the memory.
    """
    write_atomically_by(path, lambda file: _write_npz(file, columns), durable=durable)


def _parts(values: Numbers | list[Numbers]) -> list[Numbers]:
    """Return the arrays that a column is made of."""
    return values if isinstance(values, list) else [values]


def _describe(name: str, parts: Sequence[Numbers]) -> Column:
    """Return what a header says of a column; raises ValueError for parts of unlike types."""
    dtypes = {part.dtype.str for part in parts}
    if len(dtypes) != 1:
        raise ValueError(f"column {name}: found {', '.join(sorted(dtypes))}; allowed: one type")
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.data)
    return Column(
        dtype=cast("DType", dtypes.pop()),
        count=sum(part.size for part in parts),
        sha256=digest.hexdigest(),
    )


def _write_npz(file: BinaryIO, columns: Mapping[str, Numbers | list[Numbers]]) -> None:
    """Write what `numpy.load` reads.

    `numpy.savez` would need each column in one piece. Members have no date, so that equal columns
    make equal files.
    """
    import numpy as np

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, values in columns.items():
            parts = _parts(values)
            header = {"descr": parts[0].dtype.str, "fortran_order": False, "shape": _shape(values)}
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, header)
                for part in parts:
                    member.write(part.tobytes())


def _shape(values: Numbers | list[Numbers]) -> tuple[int, ...]:
    """Return the shape of a column: (ranks, values) where all ranks have equally many."""
    sizes = [part.size for part in _parts(values)]
    if isinstance(values, list) and len(set(sizes)) == 1:
        return len(sizes), sizes[0]
    return (sum(sizes),)


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


def in_memory(fetch: Callable[[str], bytes]) -> Opener:
    """Return what opens the files that `fetch` returns by their names."""
    return lambda name: io.BytesIO(fetch(name))


def text_column(text: bytes) -> Numbers:
    """Return the column of a text in UTF-8, shape (bytes,)."""
    import numpy as np

    return np.frombuffer(text, dtype=np.uint8)


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
        _Slot(column="epoch_began_at", holder=result, key="epoch_began_at"),
        _Slot(column="epoch_ended_at", holder=result, key="epoch_ended_at"),
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
