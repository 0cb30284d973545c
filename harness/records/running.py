"""The files that a trial's folder holds only while it runs: its progress, and ranks seen to fail.

They have no schema, because nobody reads them once the trial has ended.
"""

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
    """How the process of a rank ended, as whoever started it saw it.

    A rank that is killed writes nothing itself, so its parent has to.
    """

    exitcode: int  # negative: the number of the signal that ended it
    at: float  # when its end was noticed, seconds since the epoch
    pid: int  # on the rank's own machine


def read_progress_file(path: Path) -> dict[str, Any]:
    """Return how far a running trial has come, empty where there is no file (yet, or any more).

    `harness.training.progress` says which keys there are. Raises BadInput for what is no JSON,
    which can't happen to a file that is renamed into place.
    """
    try:
        text = path.read_bytes()
    except OSError:
        return {}
    progress: dict[str, Any] = decode_text(dict, text, str(path), PROGRESS_FORMAT)
    return progress


def read_failed_ranks(path: Path) -> Mapping[int, FailedRank]:
    """Return the ranks that were seen to fail, none where there is no file; raises BadInput."""
    if not path.exists():
        return {}
    failed_ranks: dict[str, FailedRank] = decode_file(
        dict[str, FailedRank], path, FAILED_RANKS_FORMAT
    )
    # The keys of JSON objects are text.
    return {int(rank): failed for rank, failed in failed_ranks.items()}
