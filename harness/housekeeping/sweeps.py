"""Lists, renames and removes recorded sweeps."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import BadInput
from harness.core.paths import Results, SweepFolder, TrialFolder
from harness.records.store import (
    is_locked,
    lock,
    read_recorded_sweep,
    read_spec,
    read_spec_content,
    recorded_folder,
    recorded_trials,
    replace_spec,
)
from harness.slurm.queue import refuse_live_jobs

REMOVED = ".removed-"  # how folders begin to which sweeps are moved before their files go


@dataclass(frozen=True, kw_only=True)
class StoredSweep:
    """What a sweep takes on the disk."""

    name: str
    folder: str
    trials: int  # that have a record
    planned: int | None  # that its last command asked for, with those; None if it can't be read
    bytes: int
    changed: float  # when its newest record was written, seconds since the epoch
    is_running: bool  # on this machine


@dataclass(frozen=True, kw_only=True)
class Removal:
    """A folder to remove, and why."""

    path: Path
    reason: str
    bytes: int


def list_sweeps(results: Results) -> list[StoredSweep]:
    """Return all recorded sweeps, the one that changed last first."""
    sweeps = []
    for path in results.runs.glob("*/sweep.json"):
        folder = SweepFolder(path.parent)
        records = folder.record_paths()
        content: dict[str, Any] = {}
        with suppress(BadInput):
            content = read_spec_content(path)
        planned = content.get("trials")
        stored = StoredSweep(
            name=content.get("name", path.parent.name),
            folder=str(folder.path),
            trials=len(records),
            planned=len(planned) if isinstance(planned, list) else None,
            bytes=size_of(folder.path),
            changed=max(record.stat().st_mtime for record in (path, *records)),
            is_running=is_locked(folder),
        )
        sweeps.append(stored)
    return sorted(sweeps, key=lambda stored: stored.changed, reverse=True)


def size_of(folder: Path) -> int:
    """Return the bytes of a file, or of all files below a folder; those that vanish do not count.

    Nor does the lock, which changes with the process that holds it.
    """
    total = folder.stat().st_size if folder.is_file() else 0
    for parent, _, names in os.walk(folder):
        for name in names:
            if name == SweepFolder(Path()).lock_path.name:
                continue
            with suppress(OSError):
                total += (Path(parent) / name).lstat().st_size
    return total


@contextmanager
def held(folder: SweepFolder) -> Iterator[None]:
    """Hold a sweep for this process; raises BadInput if a process or a job is working on it."""
    with lock(folder):
        refuse_live_jobs(folder)
        yield


def whole_sweep(folder: SweepFolder) -> Removal:
    """Return the removal of a sweep's folder."""
    return Removal(path=folder.path, reason="the whole sweep", bytes=size_of(folder.path))


def removals(
    results: Results, name: str, *, whole: bool, statuses: Sequence[str] = ()
) -> list[Removal]:
    """Return what `harness prune` removes of a sweep.

    With `whole` that is all of it. Otherwise the trials of none of its cells, such as those of
    earlier code, which no command shows; and the trials with one of `statuses`.
    """
    folder = recorded_folder(results, name)
    if whole:
        return [whole_sweep(folder)]
    recorded = read_recorded_sweep(results, name)
    recorded_ids = folder.recorded_ids()
    known_ids = {trial.id for trial in recorded_trials(recorded_ids, recorded.sweep.cells)}
    reasons: dict[str, str] = {}
    for trial_id in recorded_ids:
        if trial_id not in known_ids:
            reasons[trial_id] = "of no cell of the sweep"
    for record in recorded.records:
        if record.status in statuses:
            reasons[record.trial.id] = record.status
    listed = []
    for trial_id, reason in reasons.items():
        path = folder.trial_folder(trial_id).path
        listed.append(Removal(path=path, reason=reason, bytes=size_of(path)))
    return listed


def remove(folder: SweepFolder, listed: Sequence[Removal]) -> None:
    """Remove folders of a sweep, or all of it.

    What makes a trial count, its record, goes first, and a sweep is moved away before its files go: a
    removal that is cut off leaves nothing that is taken for whole. A link goes with the folder that it
    leads to. Raises BadInput if anybody works on the sweep, or has changed it since it was listed.
    """
    with ExitStack() as after_unlocking, held(folder):
        for removal in listed:
            if size_of(removal.path) != removal.bytes:
                raise BadInput(
                    f"{removal.path}: has changed since it was listed; nothing is removed"
                )
        for removal in listed:
            path = removal.path.resolve()
            if path.is_file():
                path.unlink()
            elif removal.path == folder.path:
                for leftover in path.parent.glob(f"{REMOVED}*"):  # of a removal that was cut off
                    shutil.rmtree(leftover, ignore_errors=True)
                # NFS keeps a file that is open, here the lock, and with it the folder.
                aside = tempfile.TemporaryDirectory(dir=path.parent, prefix=REMOVED)
                path.rename(Path(after_unlocking.enter_context(aside)) / path.name)
            else:
                TrialFolder.newest(path).record_path.unlink(missing_ok=True)
                shutil.rmtree(path)
            removal.path.unlink(missing_ok=True)  # a link
        if folder.spec_path.exists():
            _forget_removed_trials(folder)


def _forget_removed_trials(folder: SweepFolder) -> None:
    """Leave the ids of trials that have been removed out of a sweep's file, as of the same time."""
    stat = folder.spec_path.stat()
    replace_spec(read_spec(folder), folder)
    # The latest sweep is known by this time.
    os.utime(folder.spec_path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
