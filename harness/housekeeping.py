"""Lists, checks and removes recorded sweeps."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness.analysis import baseline
from harness.analysis.parity import read_parity
from harness.core.errors import BadInput
from harness.core.paths import Results, SweepFolder, TrialFolder
from harness.export.record import read_export
from harness.gate import certify
from harness.hardware import machine
from harness.records.files import read_record
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
        name = path.parent.name
        with suppress(BadInput):  # `show` says what is wrong with it
            name = read_spec_content(path).get("name", name)
        stored = StoredSweep(
            name=name,
            folder=str(folder.path),
            trials=len(records),
            bytes=size_of(folder.path),
            changed=max(record.stat().st_mtime for record in (path, *records)),
            is_running=is_locked(folder),
        )
        sweeps.append(stored)
    return sorted(sweeps, key=lambda stored: stored.changed, reverse=True)


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder; those that vanish meanwhile do not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(parent) / name).lstat().st_size
    return total


def removals(
    results: Results, name: str, *, whole: bool, statuses: Sequence[str] = ()
) -> list[Removal]:
    """Return what `harness prune` removes of a sweep.

    With `whole` that is all of it. Otherwise the trials of none of its cells, such as those of
    earlier code, which no command shows; and the trials with one of `statuses`.
    """
    folder = recorded_folder(results, name)
    if whole:
        return [Removal(path=folder.path, reason="the whole sweep", bytes=size_of(folder.path))]
    recorded = read_recorded_sweep(results, name)
    reasons = dict.fromkeys(folder.recorded_ids(), "of no cell of the sweep")
    for trial in recorded_trials(list(reasons), recorded.sweep.cells):
        del reasons[trial.id]
    for record in recorded.records:
        if record.status in statuses:
            reasons[record.trial.id] = record.status
    listed = []
    for trial_id, reason in reasons.items():
        path = folder.path / trial_id
        listed.append(Removal(path=path, reason=reason, bytes=size_of(path)))
    return listed


def remove(folder: SweepFolder, listed: Sequence[Removal]) -> None:
    """Remove folders of a sweep, or all of it.

    What makes a trial count, its record, goes first, and a sweep is moved away before its files go: a
    removal that is cut off leaves nothing that is taken for whole. A link goes with the folder that it
    leads to. Raises BadInput if a process or a job is working on the sweep.
    """
    with ExitStack() as after_unlocking, lock(folder):
        refuse_live_jobs(folder)
        for removal in listed:
            path = removal.path.resolve()
            if removal.path == folder.path:
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


def verify_sweep(results: Results, name: str) -> Iterator[str | None]:
    """Yield for each file of a sweep what is wrong with it, None if nothing is.

    Commands check the seal of each file that they read. This reads all files that hold figures: records
    with their series, and what commands leave next to them.
    """
    # Imported only now, because the other commands need no torch.
    from harness.training.checkpoint import SEAL_FILE, read_seal

    folder = results.sweep_folder(name)
    yield _problem(read_spec_content, folder.spec_path)
    for path in folder.record_paths():
        yield _problem(_read_series, path)
        trial_folder = TrialFolder.of_attempt(path.parent)
        best = trial_folder.best_checkpoints
        if best.exists():
            of_trial = {"trial": trial_folder.path.name}
            yield _problem(partial(read_seal, conditions=of_trial), best / SEAL_FILE)
        if trial_folder.export_path.exists():
            yield _problem(read_export, trial_folder)
    for path in sorted(folder.path.glob("environments/*")):
        yield _problem(_check_name, path)
    if folder.parity_path.exists():
        yield _problem(read_parity, folder)


def verify_machines(results: Results) -> Iterator[str | None]:
    """Yield the same of files that sweeps share: measured peaks, certificates and baselines."""
    for path in sorted(results.peaks.glob("*.json")):
        yield _problem(machine.read, path)
    for path in sorted(results.certificates.glob("*.json")):
        yield _problem(certify.read, path)
    for path in baseline.files(results):
        yield _problem(baseline.read, path)


def _problem(read: Callable[[Any], object], path: object) -> str | None:
    """Return what is wrong with a file; `read` raises BadInput for one that is damaged."""
    try:
        read(path)
    except BadInput as error:
        return str(error)
    return None


def _read_series(path: Path) -> None:
    """Read a record with its series, which others read only where they need them."""
    assert read_record(path).ranks is not None


def _check_name(path: Path) -> None:
    """Raise BadInput for a file that has another SHA-256 than its name says."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != path.stem:
        raise BadInput(f"{path}: was changed after it was written: its SHA-256 is {digest[:12]}…")
