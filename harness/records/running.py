"""The files that a trial's folder holds only while the trial runs: its progress, and ranks that were seen to fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.records.decode import FileFormat, decode_file, decode_text

PROGRESS_FORMAT = FileFormat(name="progress of a trial")
FAILED_RANKS_FORMAT = FileFormat(name="list of failed ranks")


@dataclass(frozen=True, kw_only=True)
class FailedRank:
    """How the process of a rank ended, as whoever started it saw it."""

    exitcode: int  # negative: the number of the signal that ended it
    at: float  # seconds since the epoch
    pid: int


def read_progress_file(path: Path) -> dict[str, Any]:
    """Return how far a running trial has come, empty where there is no file (yet, or any more)."""
    try:
        text = path.read_bytes()
    except OSError:
        return {}
    progress: dict[str, Any] = decode_text(dict, text, str(path), PROGRESS_FORMAT)
    return progress


def read_failed_ranks(path: Path) -> Mapping[int, FailedRank]:
    """Return the ranks that were seen to fail, none where there is no file."""
    if not path.exists():
        return {}
    failed_ranks: dict[str, FailedRank] = decode_file(
        dict[str, FailedRank], path, FAILED_RANKS_FORMAT
    )
    return {int(rank): failed for rank, failed in failed_ranks.items()}
