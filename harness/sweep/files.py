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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.core.errors import CodeChanged, DataChanged, HarnessError
from harness.core.paths import write_atomically
from harness.sweep.cell import PLACEHOLDER, WorkloadRef
from workloads.catalog import find_source
from workloads.code import CodeSource
from workloads.importing import user_files
from workloads.settings import Settings

REMEDY = "since the trial was planned; harness run or harness submit plans it again"
SHOWN_DIGITS = 12  # of a digest
MISSING = "missing"  # instead of the digest of a file that was removed after it was imported
Files = list[tuple[str, Path]]  # with the names that count
Digests = dict[str, str]  # of files, by their state
# What the names of files end with that configure a script.
CONFIGURATION = {".cfg", ".conf", ".ini", ".json", ".py", ".toml", ".yaml", ".yml"}


def describe_code(source: CodeSource) -> Mapping[str, str]:
    """Return the code of a workload as it is on disk now, as `WorkloadRef.code`; raises OSError."""
    if source.distribution is not None:
        return {source.distribution: str(source.version)}
    return {name: file_digest(path) for name, path in source.files.items()}


def describe_dynamic_files(reference: WorkloadRef, base_folder: Path) -> dict[str, str]:
    """Return users' files that this process has imported and the workload's code does not have.

    They were imported by names that were computed. Paths relative to the folder that they are
    imported from, to their SHA-256. One that is gone by now does not fail the trial
    that is about to end.
    """
    source = find_source(reference.uses, base_folder)
    planned = {path.resolve() for path in source.files.values()}
    digests = {}
    for name, path in user_files().items():
        if path.resolve() not in planned:
            digests[name] = file_digest(path) if path.exists() else MISSING
    return digests


def check_code(reference: WorkloadRef, base_folder: Path) -> None:
    """Raise CodeChanged unless the code of a workload is still that of its cell.

    A cell without code, as a gate trains it in another revision, may have any.
    """
    if reference.code is None:
        return
    present = describe_code(find_source(reference.uses, base_folder))
    for name, _ in sorted(reference.code.items() ^ present.items()):
        found = _head(present.get(name))
        planned = _head(reference.code.get(name))
        problem = f"{name}: found {found}; allowed: {planned}"
        raise CodeChanged(f"{problem}: the workload's code has changed {REMEDY}")


def read_digests(memory: Path | None) -> Digests:
    """Return the digests of files by their state that earlier commands have kept in a file of JSON.

    Nothing depends on it: without it, files are read again.
    """
    if memory is not None:
        with suppress(OSError, TypeError, ValueError):
            return dict(json.loads(memory.read_bytes()))
    return {}


def keep_digests(memory: Path | None, known: Digests) -> None:
    """Keep the digests of files for later commands, where there is a folder for them."""
    if memory is not None and memory.parent.is_dir():
        with suppress(OSError, HarnessError):
            write_atomically(memory, json.dumps(known), durable=False)


def digest_files(files: Files, known: Digests) -> tuple[str, str]:
    """Return the state of files and the SHA-256 over their names and contents; raises OSError.

    Files whose state is `known` are not read, and others are known from then on: a sweep may name the
    same ones at many points.
    """
    # The state comes first: files that change before they are digested have another one then.
    state = _describe_state(files)
    if state not in known:
        digest = hashlib.sha256()
        for name, path in files:
            digest.update(f"{name}\0{file_digest(path)}\0".encode())
        known[state] = digest.hexdigest()
    return state, known[state]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file; raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_by_setting(options: Settings, data: Settings) -> dict[str, Files]:
    """Return the files of each setting by its axis, as in `data.path`; paths are absolute.

    The name of a file is its place in the setting, then its path below that: `shards[0]/a.csv`.
    Files that a workload adds to those of its settings are at `options.files` and `data.files`.
    """
    by_setting: dict[str, Files] = {}
    for section, settings in (("options", options), ("data", data)):
        for path in settings.files():
            names: dict[str, str] = {}
            for place, root in settings.paths().items():
                if path.is_relative_to(root):
                    names[place.partition("[")[0]] = f"{place}/{path.relative_to(root).as_posix()}"
            names = names or {"files": path.name}
            for setting, name in names.items():
                by_setting.setdefault(f"{section}.{setting}", []).append((name, path))
    return by_setting


def _describe_state(files: Files) -> str:
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
    files = {}
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
    known = {state: planned[axis] for axis, state in reference.file_states.items()}
    for axis in sorted({*planned, *present}):
        files = present.get(axis, [])
        try:
            digest = digest_files(files, known)[1] if files else None
        except OSError as error:
            problem = f"{error.filename}: {error.strerror}"
            raise DataChanged(f"{axis}: {problem}; the data has changed {REMEDY}") from None
        if digest != planned.get(axis):
            file = files[0][1] if files else "no file"
            change = f"found {_head(digest)}; allowed: {_head(planned.get(axis))}"
            raise DataChanged(f"{axis}: {file}: {change}: the data has changed {REMEDY}")


def _head(digest: str | None) -> str:
    """Return the head of a digest, or a version; `none` where there is no file."""
    return "none" if digest is None else digest[:SHOWN_DIGITS]
