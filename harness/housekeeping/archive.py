"""Archives: a recorded sweep as one file, with a manifest by which each of its files is checked.

An archive is a tar file, compressed by gzip. Its first member is the manifest, sealed, with the size
and the SHA-256 of all others. Two things are left out. The key by which withheld values are compared:
whoever has it could try out values. And what was submitted to Slurm: it holds the values of the
profile's variables, and none of its jobs is left.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import harness
from harness.core.errors import BadInput, one_line
from harness.core.paths import (
    TEMPORARY_FILES,
    Results,
    SweepFolder,
    fsync_folder,
    write_atomically_by,
)
from harness.core.private import FILE_MODE
from harness.core.storage import writing
from harness.housekeeping.sweeps import clear_leftover, held
from harness.records.bounds import Number
from harness.records.decode import FileFormat, decode_text
from harness.records.seal import sealed_text
from harness.records.store import read_spec_content

SCHEMA = "2.0"
MANIFEST = "MANIFEST.json"
MAX_MANIFEST = 2**26  # bytes
ARCHIVE_FORMAT = FileFormat(
    name="archive", schema=SCHEMA, remedy="harness results archive writes one", is_sealed=True
)
# What commands leave that were killed: files that were being written, and checkpoints.
LEFTOVERS = (TEMPORARY_FILES, ".step-*", ".old-step-*")
BLOCK = 2**20  # bytes that are copied at a time
GZIP_LEVEL = 6  # gzip's own; tarfile's 9 takes longer for hardly fewer bytes


@dataclass(frozen=True, kw_only=True)
class ArchivedFile:
    """A file of an archive."""

    path: str  # relative to the sweep's folder, with slashes
    bytes: Number
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ArchiveManifest:
    """What an archive holds."""

    schema: str = SCHEMA
    sweep: str  # its name
    version: str  # of the harness that wrote it
    created: Number  # seconds since the epoch
    files: Sequence[ArchivedFile]


def archive(folder: SweepFolder, path: Path) -> ArchiveManifest:
    """Write a sweep into an archive and return its manifest.

    The file appears when it is complete. Raises BadInput for a path that exists or is in the sweep's own
    folder, and for a sweep that anybody works on.
    """
    check_path(folder, path)
    with held(folder):
        name = read_spec_content(folder.spec_path)["name"]
        files = [file for file in _own_files(folder) if file.is_file() and not file.is_symlink()]
        manifest = ArchiveManifest(
            sweep=name,
            version=harness.__version__,
            created=int(time.time()),
            files=[_describe(folder, file) for file in files],
        )
        mode = 0o644  # readable by those who can read all of its files
        for file in files:
            mode &= file.stat().st_mode
        mode |= FILE_MODE
        write_atomically_by(path, lambda file: _write(file, folder, manifest), mode=mode)
    return manifest


def check_path(folder: SweepFolder, path: Path) -> None:
    """Raise BadInput for an archive that exists or would be in the sweep's own folder."""
    if path.exists():
        raise BadInput(f"{path}: exists; allowed: a file that does not")
    if path.resolve().is_relative_to(folder.path.resolve()):
        raise BadInput(f"{path}: found in the folder of the sweep; allowed: a file outside of it")


def links(folder: SweepFolder) -> list[Path]:
    """Return the links in a sweep, which no archive holds, sorted."""
    return [path for path in _own_files(folder) if path.is_symlink()]


def _own_files(folder: SweepFolder) -> Iterator[Path]:
    """Yield what is in a sweep's folder, sorted, without what only running commands need.

    That is locks, keys, submissions, leftovers, and compiled code, which is made again.
    """
    left_out = {folder.lock_path, folder.key_path}
    for path in sorted(folder.path.rglob("*")):
        is_temporary = folder.jobs_path in path.parents or folder.compiled_path in path.parents
        parts = path.relative_to(folder.path).parts
        is_leftover = any(fnmatch(part, pattern) for part in parts for pattern in LEFTOVERS)
        if path not in left_out and not is_temporary and not is_leftover:
            yield path


def _describe(folder: SweepFolder, path: Path) -> ArchivedFile:
    """Return the entry of a file in the manifest."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    relative = path.relative_to(folder.path).as_posix()
    return ArchivedFile(path=relative, bytes=path.stat().st_size, sha256=digest)


def _write(file: BinaryIO, folder: SweepFolder, manifest: ArchiveManifest) -> None:
    """Write the archive into an open file."""
    text = sealed_text(asdict(manifest)).encode()
    with tarfile.open(
        fileobj=file,
        mode="w:gz",
        format=tarfile.PAX_FORMAT,
        compresslevel=GZIP_LEVEL,
        dereference=True,  # else hard links become members without content
    ) as tar:
        head = tarfile.TarInfo(MANIFEST)
        head.size, head.mtime = len(text), int(manifest.created)
        tar.addfile(head, io.BytesIO(text))
        for entry in manifest.files:
            tar.add(folder.path / entry.path, arcname=entry.path, recursive=False)


def restore(results: Results, path: Path) -> ArchiveManifest:
    """Bring back the sweep of an archive, each file checked, and return the manifest.

    The sweep appears when all of it is there. Raises BadInput for a file that is no archive, is
    damaged or cut off, or has files that its manifest does not list, and for a sweep that exists.
    """
    results.runs.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=results.path, prefix=".restore-"))
    try:
        manifest = _extract(path, aside)
        folder = check_is_new(results, manifest, path)
        name = read_spec_content(SweepFolder(aside).spec_path)["name"]
        if name != manifest.sweep:
            raise ARCHIVE_FORMAT.error(path, f"sweep: found {name!r} in its files")
        aside.chmod(0o755)  # from that of a temporary folder
        aside.rename(folder.path)
        fsync_folder(results.runs)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return manifest


def check_is_new(results: Results, manifest: ArchiveManifest, path: Path) -> SweepFolder:
    """Return the folder of an archive's sweep; raises BadInput if it exists."""
    folder = results.sweep_folder(manifest.sweep)
    clear_leftover(folder)
    if folder.path.exists():
        raise BadInput(
            f"{path}: its sweep {manifest.sweep!r} exists in {folder.path}; allowed: another"
            " --results, or harness results rename before"
        )
    return folder


def verify(path: Path) -> ArchiveManifest:
    """Read an archive to its end, check each file, and return the manifest; raises BadInput."""
    return _extract(path, None)


def _extract(path: Path, folder: Path | None) -> ArchiveManifest:
    """Check each file of an archive and write it into `folder`, if there is one; raises BadInput."""
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r|gz") as tar:
            members = iter(tar)
            manifest = _read_manifest(tar, next(members, None), path)
            missing = {entry.path: entry for entry in manifest.files}
            for member in members:
                entry = missing.pop(member.name, None)
                content = tar.extractfile(member) if member.isfile() else None
                if entry is None or content is None:
                    raise ARCHIVE_FORMAT.invalid(
                        path, f"{member.name}: found a file that is not in its manifest"
                    )
                blocks = _checked_blocks(content, entry, path)  # type: ignore[arg-type]
                if folder is not None:
                    _write_member(folder / entry.path, member, blocks)
                for _ in blocks:  # without a folder, they are only checked
                    pass
    except (OSError, EOFError, ValueError, OverflowError, zlib.error, tarfile.TarError) as error:
        raise ARCHIVE_FORMAT.invalid(path, one_line(error)) from None
    if missing:
        raise ARCHIVE_FORMAT.invalid(
            path, f"found no {min(missing)}, one of {len(missing)} that are missing"
        )
    return manifest


def _read_manifest(
    tar: tarfile.TarFile, member: tarfile.TarInfo | None, path: Path
) -> ArchiveManifest:
    """Return the manifest, the first member of an archive; raises BadInput."""
    content = None
    if member is not None and member.name == MANIFEST and member.size <= MAX_MANIFEST:
        content = tar.extractfile(member)
    if content is None:
        raise ARCHIVE_FORMAT.invalid(path, f"found no {MANIFEST} at its beginning")
    manifest = decode_text(ArchiveManifest, content.read(), str(path), ARCHIVE_FORMAT)
    for entry in manifest.files:
        parts = PurePosixPath(entry.path).parts
        if not parts or entry.path.startswith("/") or ".." in parts or "\\" in entry.path:
            shown = json.dumps(entry.path)
            raise ARCHIVE_FORMAT.invalid(
                path, f"files: found {shown}; allowed: paths inside the sweep's folder"
            )
        if parts[0] == SweepFolder(Path()).compiled_path.name:  # ranks would run it
            raise ARCHIVE_FORMAT.invalid(
                path, f"files: found {json.dumps(entry.path)}; allowed: no compiled code"
            )
    return manifest


def _write_member(target: Path, member: tarfile.TarInfo, blocks: Iterator[bytes]) -> None:
    """Write one file of an archive; raises StorageError where the disk is full or fails."""
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            file.writelines(blocks)
    target.chmod(member.mode & 0o644 | FILE_MODE)
    # By the times of a trial's files, an attempt that has ended is told from a running one.
    os.utime(target, (member.mtime, member.mtime))


def _checked_blocks(content: BinaryIO, entry: ArchivedFile, path: Path) -> Iterator[bytes]:
    """Yield the content of one file of an archive, no more than its manifest says.

    Raises BadInput if it differs.
    """
    digest = hashlib.sha256()
    size = 0
    while block := content.read(BLOCK):
        size += len(block)
        if size > entry.bytes:
            break
        digest.update(block)
        yield block
    if size != entry.bytes or digest.hexdigest() != entry.sha256:
        raise ARCHIVE_FORMAT.invalid(
            path, f"{entry.path}: found other content than its manifest says"
        )
