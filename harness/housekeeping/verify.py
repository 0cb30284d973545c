"""Checks all that files on disk promise: seals, digests, columns, every figure against its series.

Commands check the seal of each file that they read. This reads all files that hold figures: records
with their columns, and what commands leave next to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness.analysis import baseline
from harness.analysis.parity import read_parity
from harness.core.errors import BadInput
from harness.core.paths import Results, TrialFolder
from harness.export.record import read_export
from harness.gate import certify
from harness.hardware import machine
from harness.records.files import read_record
from harness.records.store import read_spec_content
from harness.training.best import read_best


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What was found out about one file."""

    path: Path
    is_record: bool = False
    ranks: int = 0  # whose series were checked, of a record
    problem: str | None = None  # a line; None for a file that is whole


def verify_sweep(results: Results, name: str) -> Iterator[Verified]:
    """Yield what each file of a sweep came to.

    Records of invalid attempts that were replaced are checked too.
    """
    folder = results.sweep_folder(name)
    yield _verify(folder.spec_path, partial(read_spec_content, folder.spec_path))
    for path in folder.record_paths():
        yield verify_record(path)
        yield from _verify_other_files(TrialFolder.of_attempt(path.parent))
    for path in sorted(folder.environment_paths()):
        yield _verify(path, partial(_check_digest, path, path.stem, "its name"))
    yield from _verify_present(folder.parity_path, partial(read_parity, folder))


def _verify_other_files(folder: TrialFolder) -> Iterator[Verified]:
    """Yield what the files next to a record came to, or that they can't be listed."""
    try:
        names = [path.name for path in folder.path.iterdir()]
    except OSError as error:
        problem = f"{folder.path}: can't be read: {error.strerror}"
        yield Verified(path=folder.path, problem=problem)
        return
    if folder.best_checkpoints.name in names or folder.export_folder.name in names:
        if folder.best_checkpoints.name in names:
            best = folder.best_checkpoints
            yield _verify(best, partial(read_best, best, folder.path.name))
        yield from _verify_present(folder.export_path, partial(read_export, folder))


def verify_machines(results: Results) -> Iterator[Verified]:
    """Yield what each file came to that sweeps share: measured peaks, certificates and baselines."""
    for path in sorted(results.peaks.glob("*.json")):
        yield _verify(path, partial(machine.read, path))
    for path in sorted(results.certificates.glob("*.json")):
        yield _verify(path, partial(certify.read, path))
    for path in baseline.files(results):
        yield _verify(path, partial(baseline.read, path))


def verify_record(path: Path) -> Verified:
    """Return whether a record is whole, with its columns."""
    try:
        record = read_record(path)
        ranks = record.ranks
    except BadInput as error:
        return Verified(path=path, is_record=True, problem=str(error))
    return Verified(path=path, is_record=True, ranks=len(ranks))


def _verify_present(path: Path, read: Callable[[], object]) -> Iterator[Verified]:
    """Yield what a file came to, nothing if there is no such file."""
    if path.exists():
        yield _verify(path, read)


def _verify(path: Path, read: Callable[[], object]) -> Verified:
    """Return what a file came to; `read` raises BadInput for one that is damaged."""
    try:
        read()
    except BadInput as error:
        return Verified(path=path, problem=str(error))
    return Verified(path=path)


def _check_digest(path: Path, expected: str, source: str) -> None:
    """Raise BadInput for a file that is missing or has another SHA-256 than `source` says."""
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise BadInput(f"{path}: can't be read: {error.strerror}; {source} names it") from None
    if digest != expected:
        raise BadInput(
            f"{path}: found the SHA-256 {digest[:12]}…; allowed: {expected[:12]}…, as of {source}: it"
            " was changed after it was written"
        )
