"""The record of what a machine can do, as measured on it: `results/peaks/<key>.json`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from harness.core.errors import BadInput
from harness.core.paths import safe_folder_name, write_atomically
from harness.records.environment import Hardware, Software, TorchSettings
from harness.records.format import FileFormat, Moment, Ordinal, decode_file, sealed_text
from workloads.settings import Between

SCHEMA = 5
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
    """What a call does, and the seconds that each repeat of it took."""

    call: Literal["matmul", "copy", "all-reduce"]
    dtype: str  # fp32, tf32, bf16 or fp16; of a copy, bytes
    size: Ordinal  # rows and columns of a product; bytes of what is copied or reduced
    ranks: Ordinal = 1
    seconds: Sequence[Annotated[float, Between(1e-12, 1e6)]]  # of one call, a number a repeat

    @property
    def work(self) -> float:
        """What a call does, in FLOP or bytes.

        A product of matrices does 2 size³, since a multiply-add counts 2. A copy reads and writes,
        as STREAM counts it. An all-reduce at n ranks moves 2 (n - 1) / n of its bytes, the bus
        bandwidth of nccl-tests, which is comparable with that of a link whatever n is.
        """
        if self.call == "matmul":
            return 2.0 * self.size**3
        if self.call == "copy":
            return 2.0 * self.size
        return self.size * 2 * (self.ranks - 1) / self.ranks


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The record that `harness peak` writes."""

    schema: int = SCHEMA
    device: Device
    measured_at: Moment  # seconds since the epoch
    hardware: Hardware
    software: Software
    timings: Sequence[Timing]
    settings: TorchSettings | None = None  # of the process that measured

    @property
    def key(self) -> str:
        """The name of the record's file; see `machine_key`."""
        return machine_key(self.hardware, self.device)

    def peak(self, dtype: str) -> float | None:
        """Return the most FLOP/s of all products in this dtype, None if there were none.

        It is that of a GPU, or of all cores of a CPU.
        """
        rates = []
        for timing in self.timings:
            if timing.call == "matmul" and timing.dtype == dtype:
                rates.append(timing.work / min(timing.seconds))
        return max(rates, default=None)


def machine_key(hardware: Hardware, device: Device) -> str:
    """Return a file name that tells machines of different speed apart.

    It has the names and the number of the GPUs, or the CPU and its usable cores. A virtual machine
    may hide the model of its CPU; family, model and stepping still tell its generation.
    """
    if device == "cpu":
        description = f"{hardware.cpu} {hardware.cpu_version or ''} {hardware.usable_cores} cores"
    else:
        counts = Counter(hardware.gpus)
        gpus = [f"{counts[name]}x {name}" for name in sorted(counts)]
        description = " ".join(gpus)
    words = re.findall(r"[A-Za-z0-9.]+", description)
    return safe_folder_name("-".join(words))


def write(folder: Path, machine: Machine) -> Path:
    """Write the record into `folder` under the machine's key; return its path."""
    path = folder / f"{machine.key}.json"
    write_atomically(path, sealed_text(asdict(machine)))
    return path


def read(path: Path) -> Machine:
    """Return a record; raises BadInput if it is none, incomplete, or of another schema."""
    return decode_file(Machine, path, MACHINE_FORMAT)


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
