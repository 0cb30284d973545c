"""Describes the files that decide what a workload computes: its code, and those that settings name.

Both are part of the ids of its cells, and a trial whose files are others than those of its cell
fails.

Built-in workloads are identified by their files, as users' workloads are, and not by the harness's
version: a checkout changes them without a new version, and a release that does not touch them leaves
their cells alone. The harness's training loop is not part of a cell. A record names its commit and
the digest of its files, and a checkpoint of another loop is refused.

A file that a setting names counts by its content and by that setting, and not by its own name or
place. In a folder, names below it count too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.errors import CodeChanged, DataChanged, HarnessError
from harness.core.paths import write_atomically
from harness.core.validation import Key
from harness.spec.cell import PLACEHOLDER, WorkloadCode, WorkloadRef
from workloads.catalog import find_source
from workloads.code import CodeSource
from workloads.importing import user_files
from workloads.settings import Settings

if TYPE_CHECKING:  # ranks check files too, and load no library that reads sweep files
    from harness.spec.document import Document

REMEDY = "since the trial was planned; harness run or harness submit plans it again"
SHOWN_DIGITS = 12  # of a digest
REMEMBERED_BYTES = 2**20  # of the smallest file whose digest is kept between commands
MISSING = "missing"  # instead of the digest of a file that was removed after it was imported
Files = list[tuple[str, Path]]  # with the names that count
# What the names of files end with that configure a script.
CONFIGURATION = {".cfg", ".conf", ".ini", ".json", ".py", ".toml", ".yaml", ".yml"}


def describe_code(source: CodeSource) -> WorkloadCode:
    """Return the code of a workload as it is on disk now; raises OSError for a file that can't be read."""
    return WorkloadCode(
        files={name: _digest(path) for name, path in source.files.items()},
        distribution=source.distribution,
        version=source.version,
    )


def describe_dynamic_files(reference: WorkloadRef, base_folder: Path) -> dict[str, str]:
    """Return users' files that this process has imported and the workload's code does not have.

    They were imported by names that were computed. Paths relative to the folder that they are
    imported from, to their SHA-256. One that is gone by now does not fail the trial
    that is about to end.
    """
    planned = {path.resolve() for path in find_source(reference.uses, base_folder).files.values()}
    digests: dict[str, str] = {}
    for name, path in user_files().items():
        if path.resolve() not in planned:
            digests[name] = MISSING
            with suppress(FileNotFoundError):
                digests[name] = _digest(path)
    return digests


def check_code(reference: WorkloadRef, base_folder: Path) -> None:
    """Raise CodeChanged unless the code of a workload is still that of its cell.

    A cell without code, as a gate trains it in another revision, may have any.
    """
    if reference.code is None:
        return
    present = describe_code(find_source(reference.uses, base_folder))
    changed = changed_parts(reference.code, present)
    if changed:
        planned = reference.code.files.get(changed[0], reference.code.version)
        found = present.files.get(changed[0], present.version)
        raise CodeChanged(
            f"{changed[0]}: found {_head(found)}; allowed: {_head(planned)}: the workload's code has"
            f" changed {REMEDY}"
        )


def changed_parts(before: WorkloadCode, now: WorkloadCode) -> list[str]:
    """Return the names of the files that differ, or of the distribution, sorted."""
    parts = {name for name, _ in before.files.items() ^ now.files.items()}
    if (before.distribution, before.version) != (now.distribution, now.version):
        parts.update(name for name in (before.distribution, now.distribution) if name)
    return sorted(parts)


class FileDigests:
    """Digests files, each once for each state that it had; a sweep may name the same ones at many points.

    Between commands, the digests of large files are kept in `memory`, a file of JSON. Nothing depends
    on it: without it, the files are read again.
    """

    def __init__(self, memory: Path | None = None) -> None:
        """Read what earlier commands have kept."""
        self._memory = memory
        self._known: dict[str, tuple[str, str]] = {}  # by path: its state and its SHA-256
        if memory is not None:
            with suppress(OSError, TypeError, ValueError):
                self._known = dict(json.loads(memory.read_bytes()))

    def digest(self, files: Files) -> str:
        """Return the SHA-256 over the names and contents of files; raises OSError."""
        digest = hashlib.sha256()
        for name, path in files:
            digest.update(f"{name}\0{self._digest_of(path)}\0".encode())
        return digest.hexdigest()

    def _digest_of(self, path: Path) -> str:
        """Return the SHA-256 of a file; raises OSError."""
        key, state = str(path.absolute()), describe_state([("", path)])
        known = self._known.get(key)
        if known is not None and known[0] == state:
            return known[1]
        self._known[key] = state, _digest(path)
        is_large = path.stat().st_size >= REMEMBERED_BYTES
        if is_large and self._memory is not None and self._memory.parent.is_dir():
            with suppress(OSError, HarnessError):
                write_atomically(self._memory, json.dumps(self._known), durable=False)
        return self._known[key][1]


def describe_files(
    document: Document, key: Key, by_setting: Mapping[str, Files], digests: FileDigests
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the states and the digests of the files of each setting of the workload at `key`.

    Raises BadInput, which names the setting, for a file that is missing or can't be read.
    """
    states: dict[str, str] = {}
    contents: dict[str, str] = {}
    for axis, files in by_setting.items():
        try:
            # The state comes first: the trial then reads files again that change before they
            # are digested.
            states[axis] = describe_state(files)
            contents[axis] = digests.digest(files)
        except OSError as error:
            problem = f"found {error.filename}: {error.strerror}; allowed: a file that can be read"
            raise document.error((*key, *axis.split(".", 1)), problem) from None
    return states, contents


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file; raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_by_setting(options: Settings, data: Settings) -> dict[str, Files]:
    """Return the files of each setting by its axis, as in `data.path`; paths are absolute.

    The name of a file is its place in the setting, then its path below that: `shards[0]/a.csv`.
    Files that a workload adds to those of its settings are at `options.files` and `data.files`,
    with names relative to the folder that they have in common.
    """
    by_setting: dict[str, Files] = {}
    for section, settings in (("options", options), ("data", data)):
        files = settings.files()
        added = dict.fromkeys(files)
        for place, root in settings.paths().items():
            axis = f"{section}.{place.partition('[')[0]}"
            for path in files:
                if path.is_relative_to(root):
                    name = f"{place}/{path.relative_to(root).as_posix()}"
                    by_setting.setdefault(axis, []).append((name, path))
                    added.pop(path, None)
        if added:
            common = os.path.commonpath([path.absolute().parent for path in added])
            by_setting[f"{section}.files"] = [(os.path.relpath(p, common), p) for p in added]
    return by_setting


def describe_state(files: Files) -> str:
    """Return a digest of the names, sizes and times of files; raises OSError.

    It changes whenever a file is written or replaced, by the time of the last change of its inode.
    """
    digest = hashlib.sha256()
    for name, path in files:
        status = path.stat()
        state = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        digest.update(f"{name}\0{state}\0".encode())
    return digest.hexdigest()


def named_files(
    arguments: Sequence[str], options: Mapping[str, Any], base: Path
) -> dict[str, Files]:
    """Return the configuration files that the arguments of a script name, by their words.

    Files of other kinds may be data, or what it writes.
    """
    files: dict[str, Files] = {}
    for argument in arguments:
        word = PLACEHOLDER.sub(lambda match: str(options.get(match[1], "")), argument)
        path = base / word.rpartition("=")[2]
        if path.suffix in CONFIGURATION and path.is_file():
            files[f"arguments.{path.name}"] = [("", path)]
    return files


def check_files(reference: WorkloadRef, present: Mapping[str, Files]) -> None:
    """Raise DataChanged unless the files of a workload's settings are still those of its cell.

    Only files that were written or replaced since they were digested are read.
    """
    planned = reference.file_digests
    for axis in sorted({*planned, *present}):
        files = present.get(axis, [])
        try:
            if files and describe_state(files) == reference.file_states.get(axis):
                continue
            digest = FileDigests().digest(files) if files else None
        except OSError as error:
            problem = f"{error.filename}: {error.strerror}"
            raise DataChanged(f"{axis}: {problem}; the data has changed {REMEDY}") from None
        if digest != planned.get(axis):
            location = os.path.commonpath([path for _, path in files]) if files else "no file"
            raise DataChanged(
                f"{axis}: {location}: found {_head(digest)}; allowed: {_head(planned.get(axis))}:"
                f" the data has changed {REMEDY}"
            )


def _head(digest: str | None) -> str:
    """Return the head of a digest, or a version; `none` where there is no file."""
    return "none" if digest is None else digest[:SHOWN_DIGITS]
