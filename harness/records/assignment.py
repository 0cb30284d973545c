"""The files of an attempt: what its ranks are to do, and what is seen of them while they run.

The runner, or a gate's arm, writes the assignment, `trial.json`, before an attempt starts, and every rank
reads it. Those who watch the ranks read their progress, their heartbeats, and which were seen to fail.
These have no schema, because nobody reads them once the trial has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.core.errors import BadFile
from harness.core.paths import write_atomically
from harness.records.environment import Code, Repository
from harness.records.format import Amount, FileFormat, Number, Ordinal, decode_file, sealed_text
from harness.sweep.cell import CheckpointRules, Trial

PROGRESS_FORMAT = FileFormat(name="progress of a trial")
HEARTBEAT_FORMAT = FileFormat(name="heartbeat of a rank")
FAILED_RANKS_FORMAT = FileFormat(name="list of failed ranks")
BEATS_PER_SECOND = 16  # of all ranks together, as far as MAX_BEAT_SECONDS allows
MIN_BEAT_SECONDS = 2.0
MAX_BEAT_SECONDS = 60.0  # between two heartbeats of a rank, so that none is silent for minutes
SCHEMA = 2  # a gate's arm may run a worker of another revision than writes its assignment
ASSIGNMENT_FORMAT = FileFormat(
    name="trial's assignment",
    schema=SCHEMA,
    remedy="harness run --force writes it again",
    is_sealed=True,
)


@dataclass(frozen=True, kw_only=True)
class Lane:
    """The share of a machine that a trial has for itself, while others run in the other lanes.

    The default is the whole machine.
    """

    number: Number = 0  # counted from 0
    count: Ordinal = 1  # lanes of the machine, this one included
    cores: Sequence[Number] = ()  # CPU cores that its ranks are bound to; none: they are not bound
    gpus: Sequence[Number] = ()  # its GPUs among those that a process sees; none: all of them


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """One attempt at one trial, complete: a worker needs no other file to run it."""

    schema: int = SCHEMA
    trial: Trial  # its cell holds the workload, all axes and the lengths
    base_folder: str  # the folder that file names of user workloads are relative to
    checkpoint: Literal["none", "best"] = "none"  # whether the best evaluation is saved
    saves: CheckpointRules | None = None  # None: no checkpoints at intervals
    profile: int | None = None  # steps to trace after the trial; None: no trace
    device: Literal["auto", "cpu", "cuda"] = "auto"
    attempt: Ordinal = 1  # counted from 1
    # What only the launcher knows: ranks need no git.
    code: Code | None = None
    repository: Repository | None = None
    installed: str | None = None  # SHA-256 of the list of packages in the sweep's folder
    lane: Lane = field(default_factory=Lane)  # what the ranks have for themselves of the machine
    packages: Sequence[str] = ()  # distributions that the workload imports, besides the usual ones


def write_assignment(path: Path, assignment: Assignment) -> None:
    """Write what a worker will read, whole or not at all."""
    write_atomically(path, sealed_text(asdict(assignment)))


def read_assignment(path: Path) -> Assignment:
    """Read an assignment; raises BadInput for a file that is missing, incomplete or damaged.

    Ranks on other nodes read it through a shared file system.
    """
    return decode_file(Assignment, path, ASSIGNMENT_FORMAT)


@dataclass(frozen=True, kw_only=True)
class FailedRank:
    """How the process of a rank ended, as whoever started it saw it.

    A rank that is killed writes nothing itself, so its parent has to.
    """

    exitcode: int  # negative: the number of the signal that ended it
    at: Amount  # when its end was noticed, seconds since the epoch


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
    beats = []
    for path in folder.glob("rank*.json"):
        with suppress(BadFile):
            beats.append(decode_file(Heartbeat, path, HEARTBEAT_FORMAT))
    return sorted(beats, key=lambda beat: beat.rank)


def read_progress_file(path: Path) -> dict[str, Any]:
    """Return what a trial last said of its progress, empty where nothing is there (yet, or any more).

    `harness.training.progress` writes it. A file that can't be used is as good as none: it only shows
    how far a trial is, and the next report, half a second later, replaces it.
    """
    with suppress(BadFile):
        return decode_file(dict[str, Any], path, PROGRESS_FORMAT)
    return {}


def read_failed_ranks(path: Path) -> Mapping[int, FailedRank]:
    """Return the ranks that were seen to fail, none where there is no file; raises BadFile."""
    if not path.exists():
        return {}
    # The keys of JSON objects are text, and become numbers again.
    failed_ranks: Mapping[int, FailedRank] = decode_file(
        dict[int, FailedRank], path, FAILED_RANKS_FORMAT
    )
    return failed_ranks
