"""The files that ranks write while a trial runs, for those who watch it.

They are its progress, the heartbeats of its ranks, ranks that were seen to fail, and what each rank
leaves when the trial hangs.

They have no schema, because nobody reads them once the trial has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from harness.core.errors import BadFile
from harness.core.validation import decode_value
from harness.records.bounds import Amount, Number
from harness.records.decode import FileFormat, decode_file, read_json

PROGRESS_FORMAT = FileFormat(name="progress of a trial")
HEARTBEAT_FORMAT = FileFormat(name="heartbeat of a rank")
FLIGHT_FORMAT = FileFormat(name="flight record of a rank")
SUSPICION_FORMAT = FileFormat(name="question to the ranks of a trial")
FAILED_RANKS_FORMAT = FileFormat(name="list of failed ranks")
MAX_RANK_DIGITS = 9  # of a rank's number in the keys of a file
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
    pid: Number  # on the rank's own machine
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


@dataclass(frozen=True, kw_only=True)
class CollectiveCall:
    """A collective that a rank has called, as torch's flight recorder has it."""

    group: str  # of ranks, empty for that of all ranks
    number: Number  # among the collectives of the group, from 1
    operation: str  # such as all_reduce
    sizes: str  # of the tensors that this rank gave, as in `4x8 Float`
    site: str  # where it was called: a line, as in `train.py:88`, or the part of torch, as in `ddp`
    finished: bool

    def __str__(self) -> str:
        group = f" of group {self.group}" if self.group else ""
        return f"{self.operation} {self.number:,}{group} ({self.site})"


@dataclass(frozen=True, kw_only=True)
class ProcessView:
    """A process as it is seen from outside, by another process or by another thread of its own."""

    pid: Number
    state: str  # as psutil calls it: running, sleeping, stopped, zombie, …
    waits_in: str = ""  # the function of the kernel in which its main thread sleeps, if it says so
    stack: str = ""  # of its main thread, as a traceback of Python without the code
    native_stack: str = ""  # of all its threads, by py-spy where that is installed


@dataclass(frozen=True, kw_only=True)
class FlightRecord:
    """What a rank leaves when it is asked, or fails together with others."""

    rank: Number
    process: ProcessView
    calls: Sequence[CollectiveCall]  # the last ones of each group, in their order
    children: Sequence[ProcessView] = ()  # such as workers of its loader
    neighbors: Mapping[str, ProcessView] = field(default_factory=dict)  # silent ranks of its host


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """The question to all ranks of a trial that makes no progress: what are you doing?"""

    silent: Sequence[Heartbeat]  # the last heartbeats of ranks that have had none for a while


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


def read_flight_record(path: Path) -> FlightRecord | None:
    """Return what a rank has left, None if it has left nothing (yet) that can be read."""
    with suppress(BadFile):
        return decode_file(FlightRecord, path, FLIGHT_FORMAT)
    return None


def read_suspicion(path: Path) -> Suspicion | None:
    """Return the question to all ranks, None where there is none."""
    with suppress(BadFile):
        return decode_file(Suspicion, path, SUSPICION_FORMAT)
    return None


def read_progress_file(
    path: Path, kind: type[TrainingProgress | ProbeProgress] = TrainingProgress
) -> dict[str, Any]:
    """Return the keys of a progress file, empty where there is no usable file (yet, or any more).

    A file that can't be used is as good as none: it only shows how far a trial is, and the next
    report, half a second later, replaces it.
    """
    try:
        content = read_json(path, PROGRESS_FORMAT)
        decode_value(kind, content)
    except (BadFile, ValueError):
        return {}
    progress: dict[str, Any] = content
    return progress


def read_failed_ranks(path: Path) -> Mapping[int, FailedRank]:
    """Return the ranks that were seen to fail, none where there is no file; raises BadFile."""
    if not path.exists():
        return {}
    failed_ranks: dict[str, FailedRank] = decode_file(
        dict[str, FailedRank], path, FAILED_RANKS_FORMAT
    )
    for rank in failed_ranks:  # the keys of JSON objects are text
        if not (rank.isascii() and rank.isdecimal() and len(rank) <= MAX_RANK_DIGITS):
            raise FAILED_RANKS_FORMAT.invalid(path, f"found {rank!r}; allowed: a rank")
    return {int(rank): failed for rank, failed in failed_ranks.items()}
