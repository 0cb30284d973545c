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
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.errors import CodeChanged, DataChanged
from harness.core.variables import UNDECIDING_VARIABLE
from harness.spec.cell import CUSTOM, WorkloadCode, WorkloadRef
from workloads.catalog import find_source
from workloads.code import digest_code, read_source
from workloads.importing import user_files
from workloads.options import Settings

REMEDY = "harness run or harness submit plans it again"
DATA_REMEDY = f"the data has changed since; {REMEDY}"
NO_CODE = WorkloadCode()
SHOWN_DIGITS = 12  # of a digest
MISSING = "missing"  # instead of the digest of a file that was removed after it was imported
Files = list[tuple[str, Path]]  # with the names that count


def describe_workload_code(
    uses: str,
    base_folder: Path,
    custom_uses: Iterable[str] = (),
    known: WorkloadCode = NO_CODE,
) -> WorkloadCode:
    """Return the code of a workload as it is on disk now, and that of axes of the user's own.

    An installed package of such an axis is among the files, by its name and version. A file whose
    text is that of `known` has its digest. Raises OSError for a file that can't be read.
    """
    source = find_source(uses, base_folder)
    paths = dict(source.files)
    packages: dict[str, str] = {}
    for axis_uses in custom_uses:
        axis_source = find_source(axis_uses, base_folder)
        for name, path in axis_source.files.items():
            # Names are relative to the folder of each file: another folder may have one of the same.
            is_taken = paths.get(name, path) != path
            paths[f"{axis_uses.rpartition(':')[0]}/{name}" if is_taken else name] = path
        if axis_source.distribution is not None:
            packages[axis_source.distribution] = str(axis_source.version)
    files: dict[str, str] = {}
    texts: dict[str, str] = {}
    variables: set[str] = set()
    for name, path in sorted(paths.items()):
        source_file = read_source(path)
        texts[name] = source_file.sha256
        for variable in source_file.variables:
            if not UNDECIDING_VARIABLE.fullmatch(variable):
                variables.add(variable)
        is_known = texts[name] == known.texts.get(name)
        files[name] = known.files[name] if is_known else digest_code(path)
    return WorkloadCode(
        files=files | packages,
        texts=texts,
        variables=sorted(variables),
        distribution=source.distribution,
        version=source.version,
    )


def describe_dynamic_files(reference: WorkloadRef) -> dict[str, str]:
    """Return users' files that this process has imported and the workload's code does not have.

    They were imported by names that were computed. Paths relative to the folder that they are
    imported from, to the SHA-256 of their code. One that is gone by now does not fail the trial
    that is about to end.
    """
    planned = reference.code.files if reference.code else {}
    digests: dict[str, str] = {}
    for name, path in user_files().items():
        if name in planned:
            continue
        try:
            digests[name] = digest_code(path)
        except FileNotFoundError:
            digests[name] = MISSING
    return digests


def check_code(reference: WorkloadRef, base_folder: Path) -> None:
    """Raise CodeChanged unless the code of a workload is still that of its cell.

    Comments and docstrings may be others. A cell without code, as a gate trains it in another revision, may have any.
    """
    planned = reference.code
    if planned is None:
        return
    active = [reference.custom_uses[name] for name in reference.identity.get(CUSTOM, {})]
    present = describe_workload_code(reference.uses, base_folder, active, planned)
    if present == planned:
        return
    name = changed_parts(planned, present)[0]
    if name in {*planned.files, *present.files}:
        found = f"SHA-256 {_head(present.files.get(name))}"
        allowed = _head(planned.files.get(name))
    else:
        found, allowed = f"version {present.version}", str(planned.version)
    raise CodeChanged(
        f"{name}: found {found}; allowed: {allowed}, as when the trial was planned: the"
        f" workload's code has changed since; {REMEDY}"
    )


def changed_parts(before: WorkloadCode, now: WorkloadCode) -> list[str]:
    """Return the names of the files that differ, or of the distribution, sorted."""
    parts = set()
    for name in {*before.files, *now.files}:
        if before.files.get(name) != now.files.get(name):
            parts.add(name)
    if (before.distribution, before.version) != (now.distribution, now.version):
        parts.update(name for name in (before.distribution, now.distribution) if name)
    return sorted(parts)


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

    Only files that were written or replaced since they were digested are read.
    """
    planned = reference.file_digests
    present = files_by_setting(options, data)
    for axis in sorted({*planned, *present}):
        files = present.get(axis, [])
        try:
            if files and describe_state(files) == reference.file_states.get(axis):
                continue
            digest = FileDigests().digest(files) if files else None
        except OSError as error:
            raise DataChanged(
                f"{axis}: {error.filename}: {error.strerror}; {DATA_REMEDY}"
            ) from None
        if digest != planned.get(axis):
            location = os.path.commonpath([path for _, path in files]) if files else "no file"
            found, allowed = _head(digest), _head(planned.get(axis))
            raise DataChanged(
                f"{axis}: {location}: found SHA-256 {found}; allowed: {allowed}, as when the trial"
                f" was planned; {DATA_REMEDY}"
            )


def _head(digest: str | None) -> str:
    """Return the head of a digest, `none` where there is no file."""
    return "none" if digest is None else digest[:SHOWN_DIGITS]
