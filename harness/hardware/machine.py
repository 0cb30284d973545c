"""The record of what a machine can do, as measured on it: `results/peaks/<key>.json`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from harness.core.errors import BadInput
from harness.core.paths import safe_folder_name, write_atomically
from harness.records.bounds import Amount, Moment, Ordinal
from harness.records.decode import FileFormat, decode_file
from harness.records.environment import Hardware, Software, TorchSettings
from harness.records.seal import sealed_text

SCHEMA = "4.0"
MACHINE_FORMAT = FileFormat(
    name="record of peaks",
    schema=SCHEMA,
    remedy="harness peak makes a new one",
    is_sealed=True,
)

PEAKS_FOLDER = "peaks"  # in the folder of the ranks that measure
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Repeated measurements of one call.

    The least and the largest of n repeats enclose the true median with probability 1 - 2^(1-n): the
    chance that all n are on the same side of the median is 2 * 2^-n.
    """

    calls: Ordinal  # in each repeat
    seconds: Sequence[Amount]  # of a single call; one number for each repeat

    @property
    def best(self) -> float:
        """The least seconds."""
        return min(self.seconds)

    @property
    def worst(self) -> float:
        """The most seconds."""
        return max(self.seconds)

    @property
    def median(self) -> float:
        """The median of the seconds."""
        return median(self.seconds)


@dataclass(frozen=True, kw_only=True)
class Matmul:
    """A product of two square matrices, the second one transposed, as in a linear layer."""

    dtype: str  # fp32, tf32, bf16 or fp16
    size: Ordinal  # rows and columns
    timing: Timing

    @property
    def work(self) -> float:
        """FLOP of a call: 2 size^3, since each of the size^3 multiply-adds counts 2."""
        return 2.0 * self.size**3


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy of one array into another, both far larger than all caches."""

    bytes: Ordinal  # of the array
    timing: Timing

    @property
    def work(self) -> float:
        """Bytes that a call reads and writes, as STREAM counts them."""
        return 2.0 * self.bytes


@dataclass(frozen=True, kw_only=True)
class TimedAllReduce:
    """A sum in fp32 over all ranks. A call takes as long as at the slowest rank."""

    bytes: Ordinal  # at each rank
    ranks: Ordinal
    timing: Timing

    @property
    def work(self) -> float:
        """Bytes of a call; divided by its seconds, the algorithm bandwidth of nccl-tests."""
        return float(self.bytes)

    @property
    def bus_work(self) -> float:
        """2 (n - 1) / n of the bytes, at n ranks.

        Divided by the seconds of a call, this is the bus bandwidth of nccl-tests, which can be
        compared with the bandwidth of a link, whatever the number of ranks.
        """
        return self.bytes * 2 * (self.ranks - 1) / self.ranks


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The record that `harness peak` writes."""

    schema: str = SCHEMA
    device: Device
    measured_at: Moment  # seconds since the epoch
    hardware: Hardware
    software: Software
    matmuls: Sequence[Matmul]
    copy: Copy
    all_reduces: Sequence[TimedAllReduce]
    settings: TorchSettings | None = None  # of the process that measured

    @property
    def key(self) -> str:
        """The name of the record's file; see `machine_key`."""
        return machine_key(self.hardware, self.device)

    def peak(self, dtype: str) -> float | None:
        """Return the most FLOP/s of all sizes and repeats, None if nothing was measured in this dtype.

        It is that of a GPU, or of all cores of a CPU.
        """
        rates = [one.work / one.timing.best for one in self.matmuls if one.dtype == dtype]
        return max(rates, default=None)


def machine_key(hardware: Hardware, device: Device) -> str:
    """Return a file name that tells machines of different speed apart.

    It has the names and the number of the GPUs, or the CPU and its usable cores. A virtual machine
    may hide the model of its CPU; family, model and stepping still tell its generation.
    """
    if device == "cpu":
        description = f"{hardware.cpu} {hardware.cpu_version or ''} {hardware.usable_cores} cores"
    else:
        names = [gpu.name for gpu in hardware.gpus]
        description = " ".join(f"{names.count(name)}x {name}" for name in sorted(set(names)))
    return safe_folder_name("-".join(re.findall(r"[A-Za-z0-9.]+", description)))


def write(folder: Path, machine: Machine) -> Path:
    """Write the record into `folder` under the machine's key; return its path."""
    path = folder / f"{machine.key}.json"
    write_atomically(path, sealed_text(asdict(machine)))
    return path


def read(path: Path) -> Machine:
    """Return a record; raises BadInput if it is none, incomplete, or of another schema."""
    machine = decode_file(Machine, path, MACHINE_FORMAT)
    measurements: list[Matmul | Copy | TimedAllReduce] = [
        *machine.matmuls,
        machine.copy,
        *machine.all_reduces,
    ]
    for measurement in measurements:
        timing = measurement.timing
        if not (timing.calls > 0 and timing.seconds and timing.best > 0):
            raise MACHINE_FORMAT.error(path, "not a valid record of peaks: a time is not positive")
    return machine


def read_all(folder: Path) -> dict[str, Machine]:
    """Return the records in `folder` by key.

    One that can't be read is left out: peaks are optional, and `harness verify` names it.
    """
    machines: dict[str, Machine] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            machine = read(path)
        except BadInput:
            continue
        machines[machine.key] = machine
    return machines
