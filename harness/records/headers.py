"""Keeps the checked headers of a sweep's records in one file, so that none is checked twice.

To read a record's header is to parse JSON, to compare its seal and to check its keys, its types and
that it agrees with itself: half a millisecond, and so seconds for ten thousand records. What passed
is kept in the sweep's folder, as it was, with parts that records share (`harness.records.shared`)
once. It is made again from the records at any time, and nothing else depends on it.

It must never say what a record does not. So a header is kept with the file's size, inode and times,
of which the time of change (`ctime`) can't be set by any program: a record that was written, restored
or damaged since is read again. Times are no finer than a tick of the kernel's clock, so that a record
is kept only once it is older than that. The whole is sealed by a digest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import msgspec
import xxhash

from harness.core.errors import StorageError
from harness.core.paths import SweepFolder, write_atomically
from harness.records.files import CheckedHeader, KeptHeader, read_checked
from harness.records.record import SCHEMA, Record

FORMAT = f"1 {SCHEMA}"  # raise the number when what is kept changes, or what is checked
SETTLED_SECONDS = 2.0  # of age, after which a change of a file shows in its times
MIN_NEW = 200  # headers that are worth writing the file for
DIGEST_BYTES = 16
MAX_BYTES = 2**30  # of the file

# Size in bytes, inode, and the times of modification and of change in nanoseconds.
Identity = tuple[int, int, int, int]


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """The header of one record."""

    identity: Identity
    parts: tuple[int | None, ...]  # for each of the shared parts, its index
    content: msgspec.Raw  # the rest, as MessagePack


class Kept(msgspec.Struct, array_like=True, frozen=True):
    """What the file holds."""

    format: str
    parts: list[bytes]  # as MessagePack
    entries: dict[str, Entry]  # by the name of the trial's folder


class Headers:
    """Reads the records of one sweep, from its file of headers where that has them."""

    def __init__(self, folder: SweepFolder) -> None:
        self.folder = folder
        self._prefix = f"{folder.path}{os.sep}"  # of the paths of all records
        self._suffix = str(folder.trial_folder("").record_path.relative_to(folder.path))
        # By the name of the trial's folder.
        self.new: dict[str, tuple[Identity, CheckedHeader]] = {}

    @cached_property
    def cached(self) -> Kept:
        """The headers that are kept; none if the file is missing or damaged."""
        return _read(self.folder.headers_path)

    def path(self, trial_id: str) -> str:
        """Return where the record of a trial is; a Path takes longer to make."""
        return f"{self._prefix}{trial_id}{os.sep}{self._suffix}"

    def read(self, trial_id: str) -> Record:
        """Read the header of a trial's record as `read_record` does; raises BadFile as that does."""
        path = self.path(trial_id)
        try:
            identity = identity_of(path)
        except OSError:
            return read_checked(Path(path))[0]  # whose error says what to do
        return self.read_identified(trial_id, identity)

    def read_if_exists(self, trial_id: str) -> Record | None:
        """Read the same, None where there is no file."""
        try:
            identity = identity_of(self.path(trial_id))
        except FileNotFoundError:
            return None
        except OSError:
            return self.read(trial_id)
        return self.read_identified(trial_id, identity)

    def read_identified(self, trial_id: str, identity: Identity) -> Record:
        """Read the same of a record that has this identity now."""
        path = self.path(trial_id)
        entry = self.cached.entries.get(trial_id)
        if entry is not None and entry.identity == identity:
            parts = [None if index is None else self.cached.parts[index] for index in entry.parts]
            return KeptHeader(entry.content, parts, path).record()
        record, header = read_checked(Path(path))
        is_settled = time.time() - max(identity[2:]) / 1e9 > SETTLED_SECONDS
        # A record that was replaced while it was read belongs to no identity.
        if header is not None and is_settled and identity_of(path) == identity:
            self.new[trial_id] = (identity, header)
        return record

    def save(self) -> None:
        """Keep what was read anew, if that is enough to be worth it.

        A folder that can't be written, as somebody else's, has no file: commands are then slower.
        """
        if len(self.new) < MIN_NEW:
            return
        with suppress(StorageError, OSError):
            _write(self.folder.headers_path, _merged(self.cached, self.new))


def identity_of(path: str) -> Identity:
    """Return what changes whenever a file does; raises OSError."""
    stat = os.stat(path)  # noqa: PTH116 - a Path takes longer to make
    return stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns


def _merged(cached: Kept, new: Mapping[str, tuple[Identity, CheckedHeader]]) -> Kept:
    """Return what is kept with what was read anew, which replaces it."""
    parts = list(cached.parts)
    index_by_part = {part: index for index, part in enumerate(parts)}
    entries = dict(cached.entries)
    for name, (identity, header) in new.items():
        indexes: list[int | None] = []
        for part in header.parts:
            if part is None:
                indexes.append(None)
                continue
            if part not in index_by_part:
                index_by_part[part] = len(parts)
                parts.append(part)
            indexes.append(index_by_part[part])
        entries[name] = Entry(identity, tuple(indexes), msgspec.Raw(header.content))
    return Kept(FORMAT, parts, entries)


def _read(path: Path) -> Kept:
    """Return what a file holds, nothing where it is missing, damaged or of another format."""
    nothing = Kept(FORMAT, [], {})
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                return nothing
            digest = file.read(DIGEST_BYTES)
            content = file.read()
    except OSError:
        return nothing
    if xxhash.xxh3_128_digest(content) != digest:
        return nothing
    try:
        cached = msgspec.msgpack.decode(content, type=Kept)
    except msgspec.DecodeError:
        return nothing
    return cached if cached.format == FORMAT else nothing


def _write(path: Path, cached: Kept) -> None:
    """Write the file; it need not survive a loss of power, as its digest tells."""
    content = msgspec.msgpack.encode(cached)
    write_atomically(path, xxhash.xxh3_128_digest(content) + content, durable=False)
