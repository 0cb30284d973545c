"""What a machine can do, as measured on it: the record `results/peaks/<key>.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from harness.core.paths import safe_folder_name, write_atomically
from harness.records.decode import FileFormat, decode_file
from harness.records.environment import Hardware, Software, TorchSettings

SCHEMA = "2.0"
MACHINE_FORMAT = FileFormat(
    name="record of peaks", schema=SCHEMA, remedy="harness peak makes a new one"
)

Device = Literal["cpu", "cuda"]
Layout = Literal[
    "nn", "nt", "tn"
]  # A B, A Bᵀ and Aᵀ B, as in BLAS: backward's, forward's and the weights' of a linear layer


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Repeats of a call. The least and the largest of n enclose the true median with probability 1 - 2^(1-n)."""

    calls: int  # in each repeat
    seconds: Sequence[float]  # of one call; one number a repeat

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def worst(self) -> float:
        return max(self.seconds)

    @property
    def median(self) -> float:
        return median(self.seconds)


@dataclass(frozen=True, kw_only=True)
class Matmul:
    """A product of two square matrices, in the layout that is fastest."""

    dtype: str  # fp32, tf32, bf16 or fp16
    layout: Layout
    size: int  # rows and columns
    threads: int | None  # None on a GPU
    timing: Timing

    @property
    def work(self) -> float:
        """FLOP of a call: 2 size^3, as a multiply-add counts 2."""
        return 2.0 * self.size**3


@dataclass(frozen=True, kw_only=True)
class Copy:
    """One array copied into another, within memory or between host and GPU (page-locked)."""

    direction: Literal["memory", "to-device", "from-device"]
    bytes: int  # of the array
    threads: int | None  # None on a GPU
    timing: Timing

    @property
    def work(self) -> float:
        """Bytes of a call: within memory what is read and what is written, as STREAM counts; across, what goes over."""
        return float(self.bytes * (2 if self.direction == "memory" else 1))


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """An fp32 sum of `bytes` at each of `ranks` ranks; a call takes as long as at the slowest rank."""

    bytes: int
    ranks: int
    timing: Timing

    @property
    def work(self) -> float:
        """Bytes of a call: over its seconds they are nccl-tests' algorithm bandwidth."""
        return float(self.bytes)

    @property
    def bus_work(self) -> float:
        """For nccl-tests' bus bandwidth, which a link's own can be held against: 2(n-1)/n of the bytes."""
        return self.bytes * 2 * (self.ranks - 1) / self.ranks


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The record of `harness peak`."""

    schema: str = SCHEMA
    device: Device
    quick: bool  # few sizes and few repeats
    measured_at: float  # when, in seconds since the epoch
    hardware: Hardware
    software: Software
    cache_bytes: int | None  # of all last-level caches; None on a GPU and where unknown
    matmuls: Sequence[Matmul]
    copies: Sequence[Copy]
    all_reduces: Sequence[AllReduce]
    settings: TorchSettings | None = None  # of the process that measured

    @property
    def key(self) -> str:
        return machine_key(self.hardware, self.device)

    def peak(self, dtype: str, threads: int | None) -> float | None:
        """FLOP/s: the best of all sizes and repeats; None unless this dtype was measured with as many threads."""
        found = [
            one.work / one.timing.best
            for one in self.matmuls
            if (one.dtype, one.threads) == (dtype, threads)
        ]
        return max(found, default=None)

    def bandwidth(self, threads: int | None) -> float | None:
        """Bytes/s of main memory: the best repeat of the largest array."""
        largest = max(self._copies(threads), key=lambda one: one.bytes, default=None)
        return None if largest is None else largest.work / largest.timing.best

    def cache_bandwidth(self, threads: int | None) -> float | None:
        """Bytes/s of the arrays that are copied fastest, which lie in a cache."""
        return max((one.work / one.timing.best for one in self._copies(threads)), default=None)

    def _copies(self, threads: int | None) -> list[Copy]:
        return [one for one in self.copies if one.direction == "memory" and one.threads == threads]


def machine_key(hardware: Hardware, device: Device) -> str:
    """Tells machines apart by what decides their speed: GPUs and how many, or the CPU and its usable cores.

    Virtual machines hide the model of their CPU; family, model and stepping tell its generation all the same.
    """
    if device == "cuda":
        names = [gpu.name for gpu in hardware.gpus]
        words = " ".join(f"{names.count(name)}x {name}" for name in sorted(set(names)))
    else:
        words = f"{hardware.cpu} {hardware.cpu_version or ''} {hardware.usable_cores} cores"
    return safe_folder_name("-".join(re.findall(r"[A-Za-z0-9.]+", words)))


def write(folder: Path, machine: Machine) -> Path:
    """Leave the record in `folder` under the machine's key."""
    path = folder / f"{machine.key}.json"
    write_atomically(path, json.dumps(asdict(machine), indent=1, allow_nan=False) + "\n")
    return path


def read(path: Path) -> Machine:
    """Raises BadInput for what is no such record, not whole, or of another schema."""
    machine = decode_file(Machine, path, MACHINE_FORMAT)
    timings = [
        one.timing
        for found in (machine.matmuls, machine.copies, machine.all_reduces)
        for one in found
    ]
    if not all(timing.calls > 0 and timing.seconds and timing.best > 0 for timing in timings):
        raise MACHINE_FORMAT.error(path, "not a valid record of peaks: a time is not positive")
    return machine


def read_all(folder: Path) -> dict[str, Machine]:
    """The records in `folder` by key; raises BadInput for one that can't be read."""
    found = [read(path) for path in sorted(folder.glob("*.json"))]
    return {machine.key: machine for machine in found}
