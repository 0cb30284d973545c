"""What a worker is to do: the file `trial.json` in a trial's folder.

The runner, or a gate's arm, writes it before an attempt starts, and every rank reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from harness.core.paths import write_atomically
from harness.records.bounds import Number, Ordinal
from harness.records.code import Code, Repository
from harness.records.decode import FileFormat, decode_file
from harness.records.seal import sealed_text
from harness.sweep.cell import CheckpointRules, Profiling, Trial

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
    profile: Profiling | None = None  # None: no trace
    device: Literal["auto", "cpu", "cuda"] = "auto"
    attempt: Ordinal = 1  # counted from 1
    # What only the launcher knows: ranks need neither git nor MLflow.
    code: Code | None = None
    mlflow: str | None = None  # its version
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
