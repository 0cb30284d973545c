"""The files that ranks write while a trial runs, for those who watch it.

They are its progress, the heartbeats of its ranks, ranks that were seen to fail, and what each rank
leaves when the trial hangs.

They have no schema, because nobody reads them once the trial has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from harness.core.errors import BadFile
from harness.core.validation import decode_value
from harness.records.bounds import Amount, Number
from harness.records.decode import FileFormat, decode_file

PROGRESS_FORMAT = FileFormat(name="progress of a trial")
HEARTBEAT_FORMAT = FileFormat(name="heartbeat of a rank")
FAILED_RANKS_FORMAT = FileFormat(name="list of failed ranks")
BEATS_PER_SECOND = 16  # of all ranks together, as far as MAX_BEAT_SECONDS allows
MIN_BEAT_SECONDS = 2.0
MAX_BEAT_SECONDS = 60.0  # between two heartbeats of a rank, so that none is silent for minutes


@dataclass(frozen=True, kw_only=True)
class TrainingProgress:
    """How far a trial has come, as `harness.training.progress` writes it."""

    phase: str  # what rank 0 does
    step: Number  # optimizer steps that are done
    steps: Number | None  # that the trial will train; None of a script of unknown length
    at: Amount  # when this was written, seconds since the epoch
    rate: Amount | None = None  # samples/s over all ranks
    loss: float | None = None
    # Seconds that the longest segment of this attempt took, compilation aside; None of a script.
    slowest: Amount | None = None
    # Of a trial that saves at intervals: its last checkpoint, or where this attempt began.
    saved_step: Number | None = None
    saved_at: Amount | None = None  # seconds since the epoch


@dataclass(frozen=True, kw_only=True)
class ProbeProgress:
    """What `harness peak` measures at the moment."""

    now: str


@dataclass(frozen=True, kw_only=True)
class FailedRank:
    """How the process of a rank ended, as whoever started it saw it.

    A rank that is killed writes nothing itself, so its parent has to.
    """

    exitcode: Annotated[
        int, Meta(ge=-64, le=255)
    ]  # negative: the number of the signal that ended it
    at: Amount  # when its end was noticed, seconds since the epoch
    out_of_memory: bool = False  # whether the kernel killed it for want of memory


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """A sign of life of one rank."""

    rank: Number
    host: str
    pid: Number  # on its host
    created: Amount  # when that process was created, by which another one with its id is told apart
    step: Number  # optimizer steps done
    in_step: bool  # whether it trains at this moment: does not compile, evaluate, save or prepare
    position: str  # of its main thread in the code: module.function:line
    at: Amount  # seconds since the epoch, by the clock of its host

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} is in {self.position} after step {self.step}"


def heartbeat_seconds(world_size: int) -> float:
    """Return the seconds between two heartbeats of a rank.

    Many ranks have slower hearts, so that a shared folder gets few small files a second.
    """
    return min(MAX_BEAT_SECONDS, max(MIN_BEAT_SECONDS, world_size / BEATS_PER_SECOND))


def read_heartbeats(folder: Path) -> list[Heartbeat]:
    """Return the last heartbeat of every rank that has left one, by rank.

    What can't be read is left out: it belongs to a trial that is just being ended.
    """
    beats = [read_heartbeat(path) for path in folder.glob("rank*.json")]
    return sorted((beat for beat in beats if beat is not None), key=lambda beat: beat.rank)


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Return the last heartbeat of a rank, None if it can't be read."""
    with suppress(BadFile):
        return decode_file(Heartbeat, path, HEARTBEAT_FORMAT)
    return None


def read_progress_file(
    path: Path, kind: type[TrainingProgress | ProbeProgress] = TrainingProgress
) -> dict[str, Any]:
    """Return the keys of a progress file, empty where there is no usable file (yet, or any more).

    A file that can't be used is as good as none: it only shows how far a trial is, and the next
    report, half a second later, replaces it.
    """
    try:
        content = decode_file(dict[str, Any], path, PROGRESS_FORMAT)
        decode_value(kind, content)
    except (BadFile, ValueError):
        return {}
    return content


def read_failed_ranks(path: Path) -> Mapping[int, FailedRank]:
    """Return the ranks that were seen to fail, none where there is no file; raises BadFile."""
    if not path.exists():
        return {}
    # The keys of JSON objects are text, and become numbers again.
    failed_ranks: Mapping[int, FailedRank] = decode_file(
        dict[int, FailedRank], path, FAILED_RANKS_FORMAT
    )
    return failed_ranks
