"""Describes the files that a workload's settings name: their content is part of its cells' ids.

A file counts by its content and by the setting that names it, and not by its own name or place. In
a folder, names below it count too. A trial whose files are others than those of its cell fails.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.errors import DataChanged
from harness.spec.cell import WorkloadRef
from workloads.options import Settings

SHOWN_DIGITS = 12  # of a digest
_REMEDY = "the data has changed since; harness run plans it again"
Files = list[tuple[str, Path]]  # with the names that count


@dataclass
class FileDigests:
    """Digests files, each once; a sweep may name the same files at many points."""

    contents: dict[Path, str] = field(default_factory=dict)  # SHA-256

    def digest(self, files: Files) -> str:
        """Return the SHA-256 over the names and contents of files; raises OSError."""
        digest = hashlib.sha256()
        for name, path in files:
            if path not in self.contents:
                with path.open("rb") as file:
                    self.contents[path] = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{name}\0{self.contents[path]}\0".encode())
        return digest.hexdigest()


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


def check_files(reference: WorkloadRef, options: Settings, data: Settings) -> None:
    """Raise DataChanged unless the files of a workload's settings are still those of its cell.

    Only files that were written or replaced since they were digested are read. Earlier
    records do not say which setting names which files, and are not checked.
    """
    if isinstance(reference.identity.get("files"), str):
        return
    planned = reference.file_digests
    present = files_by_setting(options, data)
    for axis in sorted({*planned, *present}):
        files = present.get(axis, [])
        try:
            if files and describe_state(files) == reference.file_states.get(axis):
                continue
            digest = FileDigests().digest(files) if files else None
        except OSError as error:
            raise DataChanged(f"{axis}: {error.filename}: {error.strerror}; {_REMEDY}") from None
        if digest != planned.get(axis):
            location = os.path.commonpath([path for _, path in files]) if files else "no file"
            found, allowed = _head(digest), _head(planned.get(axis))
            raise DataChanged(
                f"{axis}: {location}: found SHA-256 {found}; allowed: {allowed}, as when the trial"
                f" was planned; {_REMEDY}"
            )


def _head(digest: str | None) -> str:
    """Return the head of a digest, `none` for a setting without files."""
    return "none" if digest is None else digest[:SHOWN_DIGITS]
