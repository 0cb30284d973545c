"""Traces: digests of everything that a rank computes, in the order in which it computes it.

A rank writes its trace line by line, so that a trial that fails leaves what came before. Each line
is a JSON array with the fields of a `Mark`.

Digests are the 128 bits of xxh3 over type, shape and bytes. They are as fast as memory can be read,
and see what norms and sums miss: signs, swapped elements and permuted rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import starmap
from pathlib import Path

import msgspec
import xxhash

from harness.core.errors import BadInput
from harness.core.paths import write_atomically
from harness.records.format import FileFormat, decode_file

# What a step does, in its order; from "data" to "backward" it comes once for each micro-batch.
PHASES = (
    "parameters",
    "buffers before",
    "samples",
    "data",
    "random",
    "forward",
    "buffers",
    "backward",
    "all-reduce",
    "optimizer settings",
    "optimizer state",
    "optimizer",
    "after_step",
    "workload state",
    "evaluation",
)
# Phases whose values are those of the whole trial: the same at all ranks, however many there are.
GLOBAL_PHASES = ("parameters", *PHASES[PHASES.index("all-reduce") :])
RECORDING = "recording.json"
RECORDING_FORMAT = FileFormat(name="recording of a trial")
AFTER_MICRO_STEPS = 1 << 30  # the micro-step of what comes once, after all micro-steps


@dataclass(frozen=True)
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
    def tensor(self) -> str:
        """Return phase and name, which are those of the same tensor at each step."""
        return f"{self.phase} {self.name}"

    @property
    def key(self) -> tuple[int, int, str, str]:
        """Return what is the same for marks of two trials that are to be compared."""
        return self.step, self.micro_step, self.phase, self.name


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What a trace has: all steps up to the last one, or that one alone."""

    last_step: int  # counted from 1
    all_steps: bool = False
    tensors: bool = True  # whether each tensor has a mark, or all tensors of a moment share one
    values: bool = False  # whether the tensors themselves are kept, of the last step
    snapshots: bool = False  # whether rank 0 keeps parameters and buffers at a few steps
    left_out: Sequence[str] = ()  # tensors of no mark, each as `Mark.tensor` calls it


def combine(digests: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return one name and one digest for all tensors of a moment, given their names and digests.

    The name depends on the tensors' names: moments of other tensors are not to be compared.
    """
    names = repr([name for name, _ in digests])
    return (
        f"{len(digests)} tensors {xxhash.xxh3_64_hexdigest(names.encode())}",
        xxhash.xxh3_128_hexdigest(repr(digests).encode()),
    )


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


def decode_trace(content: bytes, source: object) -> list[Mark]:
    """Return the marks of a trace, in its order; raises BadInput for a damaged one."""
    try:
        lines = msgspec.json.Decoder(tuple[int, int, str, str, str]).decode_lines(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{source}: found no marks of a trace ({error}); run it again") from None
    return list(starmap(Mark, lines))


def read_traces(folder: Path, world_size: int) -> list[Sequence[Mark]]:
    """Return the traces of all ranks, by rank; raises BadInput."""
    paths = [trace_path(folder, rank) for rank in range(world_size)]
    return [decode_trace(path.read_bytes(), path) for path in paths]
