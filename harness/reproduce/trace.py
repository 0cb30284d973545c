"""Traces: digests of everything that a rank computes, in the order in which it computes it.

A rank writes its trace line by line, so that a trial that fails leaves what came before. Each line
is a JSON array with the fields of a `Mark`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from harness.core.errors import BadInput
from harness.core.paths import write_atomically
from harness.records.decode import FileFormat, decode_file

# What a step does, in its order; the second to the fifth come once for each micro-batch.
PHASES = (
    "parameters",
    "data",
    "random",
    "forward",
    "backward",
    "all-reduce",
    "optimizer",
    "evaluation",
)
# Phases whose values are those of the whole trial: the same at all ranks, however many there are.
GLOBAL_PHASES = ("parameters", "all-reduce", "optimizer", "evaluation")
RECORDING = "recording.json"
RECORDING_FORMAT = FileFormat(name="recording of a trial")
AFTER_MICRO_STEPS = 1 << 30  # the micro-step of what comes once, after all micro-steps


@dataclass(frozen=True, kw_only=True)
class Mark:
    """The digest of one tensor, or of another value, at one moment of training."""

    step: int  # counted from 1, over all epochs
    micro_step: int  # counted from 1; AFTER_MICRO_STEPS for what is no part of one
    phase: str  # one of PHASES
    name: str  # of the tensor, as the model or the optimizer calls it
    digest: str  # hexadecimal, over type, shape and bytes

    @property
    def moment(self) -> tuple[int, int, int]:
        """Return what marks are ordered by: the order in which a rank computes them."""
        return self.step, self.micro_step, PHASES.index(self.phase)

    @property
    def key(self) -> tuple[int, int, str, str]:
        """Return what is the same for marks of two trials that are to be compared."""
        return self.step, self.micro_step, self.phase, self.name


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What a trace has."""

    first_step: int  # counted from 1
    last_step: int  # training ends after it
    tensors: bool  # whether each tensor has a mark of its own, or all of a moment have one together
    values: bool  # whether the tensors themselves are kept, of the last step


def write_recording(folder: Path, recording: Recording) -> None:
    """Write what the ranks of a trial are to record."""
    write_atomically(folder / RECORDING, json.dumps(asdict(recording)) + "\n", durable=False)


def read_recording(folder: Path) -> Recording:
    """Read what this rank is to record; raises BadInput."""
    return decode_file(Recording, folder / RECORDING, RECORDING_FORMAT)


def trace_path(folder: Path, rank: int) -> Path:
    """Return where a rank writes its trace."""
    return folder / f"trace{rank}.jsonl"


def values_path(folder: Path, rank: int) -> Path:
    """Return where a rank writes the tensors of one step, if it is asked to."""
    return folder / f"values{rank}.safetensors"


def value_name(mark: Mark) -> str:
    """Return what a mark's tensor is called in the file of values."""
    return f"{mark.micro_step} {mark.phase} {mark.name}"


def encode(mark: Mark) -> str:
    """Return a mark as a line."""
    return json.dumps(astuple(mark)) + "\n"


def read_trace(path: Path) -> list[Mark]:
    """Return the marks of a rank's trace, in its order; raises BadInput for a damaged file."""
    marks = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            step, micro_step, phase, name, digest = json.loads(line)
        except ValueError:
            raise BadInput(f"{path}:{number}: found no mark of a trace; run it again") from None
        marks.append(Mark(step=step, micro_step=micro_step, phase=phase, name=name, digest=digest))
    return marks


def read_traces(folder: Path, world_size: int) -> list[Sequence[Mark]]:
    """Return the traces of all ranks, by rank; raises BadInput."""
    return [read_trace(trace_path(folder, rank)) for rank in range(world_size)]
