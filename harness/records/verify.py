"""Checks all that records on disk promise: seals, columns, and every figure against its series.

Commands read the headers of records and check their seals. This reads everything else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import BadInput
from harness.core.paths import SweepFolder
from harness.records.files import read_record
from harness.records.store import read_spec_content


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What was found out about one file of a sweep."""

    path: Path
    ranks: int = 0  # whose series were checked
    problem: str | None = None  # a line; None for a file that is whole


def verify_sweep(folder: SweepFolder) -> Iterator[Verified]:
    """Yield what each record of a sweep came to, and the file of the sweep itself if it is damaged.

    Records of invalid attempts that were replaced are checked too.
    """
    try:
        read_spec_content(folder.spec_path)
    except BadInput as error:
        yield Verified(path=folder.spec_path, problem=str(error))
    for path in folder.record_paths():
        yield verify_record(path)
        for invalid in sorted(path.parent.glob("invalid-*.json")):
            yield verify_record(invalid)


def verify_record(path: Path) -> Verified:
    """Return whether a record is whole, with its columns and the files of its fingerprints."""
    try:
        record = read_record(path)
        if record.loss is not None:
            record.loss.unpack()
        ranks = list(record.ranks)
        for result in ranks:
            if result.fingerprints is not None:
                _check_file(path.parent / result.fingerprints.file, result.fingerprints.file_digest)
    except BadInput as error:
        return Verified(path=path, problem=str(error))
    return Verified(path=path, ranks=len(ranks))


def _check_file(path: Path, expected: str) -> None:
    """Raise BadInput for a file that is missing or has another SHA-256 than its record says."""
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise BadInput(f"{path}: can't be read: {error.strerror}; its record names it") from None
    if digest != expected:
        raise BadInput(
            f"{path}: found the SHA-256 {digest[:12]}…; allowed: {expected[:12]}…, as recorded: it"
            " was changed after it was written"
        )
