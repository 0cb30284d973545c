"""Measures what a machine can do: the task `peaks` of `harness.training.worker`.

It reads FOLDER/trial.json, which holds a `Request`, and leaves the record in FOLDER/peaks.

Rank 0 measures matrix products and copies while the other ranks wait; then all ranks reduce
together.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from harness.core.cores import usable_cores
from harness.core.errors import HarnessError
from harness.core.paths import TrialFolder, write_atomically
from harness.hardware.machine import (
    PEAKS_FOLDER,
    Copy,
    Machine,
    Matmul,
    TimedAllReduce,
    Timing,
    write,
)
from harness.records import environment
from harness.records.decode import FileFormat, decode_file
from harness.records.record import RankResult
from harness.training.entry import COLLECTIVE_TIMEOUT
from harness.training.ranks import Ranks, all_reduce_min, choose_device, process_group
from harness.training.state import TrainingState

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,  # fp32 tensors, whose products use TensorFloat-32
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
AMPERE = 8  # the compute capability from which on GPUs have TensorFloat-32 and bf16
MAX_SECONDS = 1 / 16  # after a product that took longer, no larger one is measured
KIB, MIB = 2**10, 2**20
CPU_SIZES = (256, 512, 1024, 2048)  # rows and columns of products
GPU_SIZES = (1024, 2048, 4096, 8192, 16384)
ALL_REDUCE_BYTES = (4, 64 * KIB, MIB, 64 * MIB)  # at each rank
CACHE_MULTIPLE = 8  # how much larger than the caches the array is that is copied
REPEATS = 5
MIN_SECONDS = 0.05  # of a repeat

MIN_REPEATS = 3
ENOUGH_SECONDS = 1.0  # once the repeats have taken that long, MIN_REPEATS are enough
MAX_GROWTH = 100  # by which the number of calls grows at once

# Makes a number of calls and returns the seconds that they took.
Run = Callable[[int], float]

REQUEST_FORMAT = FileFormat(name="request for peaks")


@dataclass(frozen=True, kw_only=True)
class Request:
    """The content of `trial.json`."""

    device: Literal["auto", "cpu", "cuda"] = "auto"


@dataclass
class PeakMeasurements:
    """The measurements at one rank.

    `run` fills them in; products and the copy are measured at rank 0 alone.
    """

    device: torch.device  # of this rank
    ranks: Ranks  # which rank this is, and how many there are
    on_progress: Callable[[str], None]  # gets what is being measured
    matmuls: list[Matmul] = field(default_factory=list)
    copy: Copy | None = None
    all_reduces: list[TimedAllReduce] = field(default_factory=list)

    def run(self) -> None:
        """Measure everything, on a CPU with a thread for each core."""
        if self.device.type == "cpu":
            torch.set_num_threads(len(usable_cores()))
        if self.ranks.is_rank_0:
            for dtype in dtypes(self.device):
                self._measure_matmuls(dtype)
            self._measure_copy()
        if self.ranks.world_size > 1:
            all_reduce_min(self.device, 0)  # the other ranks wait here for rank 0
            self._measure_all_reduces()

    def _measure_matmuls(self, dtype: str) -> None:
        """Measure products of growing sizes, up to one that takes longer than MAX_SECONDS."""
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        for size in GPU_SIZES if self.device.type == "cuda" else CPU_SIZES:
            self.on_progress(f"product of {size}² {dtype}")
            timing = repeat(runner(product(size, DTYPES[dtype], self.device), self.device))
            self.matmuls.append(Matmul(dtype=dtype, size=size, timing=timing))
            if timing.best > MAX_SECONDS:
                break

    def _measure_copy(self) -> None:
        """Measure the copy of an array that no cache holds."""
        size = far_larger_than_cache(self.device)
        self.on_progress(f"copy of {size / MIB:g} MiB")
        source = torch.ones(size, dtype=torch.uint8, device=self.device)
        target = torch.zeros_like(source)
        run = runner(lambda: target.copy_(source), self.device)
        self.copy = Copy(bytes=source.nbytes, timing=repeat(run))

    def _measure_all_reduces(self) -> None:
        """Measure sums over all ranks; raises HarnessError if one of them is wrong."""
        world_size = self.ranks.world_size
        for size in ALL_REDUCE_BYTES:
            self.on_progress(f"all-reduce of {size} bytes at {world_size} ranks")
            values = torch.ones(size // 4, device=self.device)
            dist.all_reduce(values)
            if not bool((values == world_size).all()):
                raise HarnessError(
                    f"an all-reduce of ones at {world_size} ranks gave {float(values[0])}"
                )
            values.zero_()  # sums of sums would overflow
            timing = repeat(self._all_reduce_run(values))
            self.all_reduces.append(TimedAllReduce(bytes=size, ranks=world_size, timing=timing))

    def _all_reduce_run(self, values: torch.Tensor) -> Run:
        """Return a function that times all-reduces of `values`, with the same result at all ranks.

        All ranks begin together and get the time of the slowest, so that all of them decide alike
        how many calls to make next.
        """
        run_here = runner(lambda: dist.all_reduce(values), self.device)

        def run(calls: int) -> float:
            """Return the seconds of `calls` calls at the slowest rank."""
            dist.barrier()
            nanoseconds = round(run_here(calls) * 1e9)
            slowest = -all_reduce_min(self.device, -nanoseconds)[0]  # the maximum
            return slowest / 1e9

        return run


def repeat(run: Run, *, repeats: int = REPEATS, min_seconds: float = MIN_SECONDS) -> Timing:
    """Warm up, then time `repeats` repeats of as many calls as take at least `min_seconds`.

    If an interruption made a few calls look long, a later repeat is shorter than `min_seconds`.
    Then all repeats begin again with more calls.
    """
    run(1)  # a first call may load libraries or allocate memory
    calls = 1
    spans: list[float] = []  # seconds of each repeat
    while len(spans) < repeats:
        if len(spans) >= MIN_REPEATS and sum(spans) >= ENOUGH_SECONDS:
            break
        seconds = run(calls)
        if seconds >= min_seconds:
            spans.append(seconds)
        else:
            # A tenth more than should be needed. The number at least doubles, so that the search
            # ends, and grows at most by MAX_GROWTH, as the clock cannot resolve very short times.
            proportional = math.ceil(1.1 * calls * min_seconds / max(seconds, 1e-9))
            calls = max(2 * calls, min(MAX_GROWTH * calls, proportional))
            spans = []
    return Timing(calls=calls, seconds=[span / calls for span in spans])


def runner(call: Callable[[], object], device: torch.device) -> Run:
    """Return a function that times repeated calls: by events on a GPU, by the monotonic clock elsewhere."""

    def run_on_host(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - began

    def run_on_gpu(calls: int) -> float:
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3  # it returns milliseconds

    return run_on_gpu if device.type == "cuda" else run_on_host


def product(size: int, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    """Return the product of a random matrix and another one transposed, as a call.

    The matrices are random because a GPU draws less power for zeros, and then clocks higher.
    """
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.randn(size, size, device=device).to(dtype)
    c = torch.empty_like(a)  # the same for all calls, so that none allocates
    return lambda: torch.mm(a, b.t(), out=c)


def dtypes(device: torch.device) -> list[str]:
    """Return the dtypes to measure: those whose products the device has instructions for.

    fp16 is left out on CPUs: few have it, and the others take minutes.
    """
    if device.type == "cpu":
        return ["fp32", "bf16"]
    major, _ = torch.cuda.get_device_capability(device)
    if major < AMPERE:
        return ["fp32", "fp16"]
    return ["fp32", "tf32", "bf16", "fp16"]


def far_larger_than_cache(device: torch.device) -> int:
    """Return the bytes of an array whose copy measures main memory.

    On a CPU: CACHE_MULTIPLE times all last-level caches and at least 256 MiB. On a GPU: 1 GiB. On
    both at most an eighth of the memory.
    """
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        return min(1024 * MIB, memory // 8)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    desired = max(256 * MIB, CACHE_MULTIPLE * (cache_bytes() or 0))
    return min(desired, memory // 8)


def cache_bytes(devices: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """Return the bytes of all last-level caches together, None where Linux does not report them.

    Each core lists the caches that it uses; `shared_cpu_list` has the cores that share a cache, so
    level and list together identify it.
    """
    sizes: dict[tuple[int, str], int] = {}
    try:
        for cache in devices.glob("cpu[0-9]*/cache/index[0-9]*"):
            level = int((cache / "level").read_text())
            shared_by = (cache / "shared_cpu_list").read_text().strip()
            kibibytes = (cache / "size").read_text().strip().removesuffix("K")
            sizes[level, shared_by] = int(kibibytes) * KIB
    except (OSError, ValueError):
        return None
    last_level = max((level for level, _ in sizes), default=0)
    return sum(size for (level, _), size in sizes.items() if level == last_level) or None


def measure(request: Request, ranks: Ranks, on_progress: Callable[[str], None]) -> Machine | None:
    """Measure this machine; every rank must call it, and rank 0 gets what was measured.

    `on_progress` gets what is being measured. Raises HarnessError if an all-reduce gives a wrong sum.
    """
    device = choose_device(request.device, ranks)
    with process_group(ranks, device, needed=ranks.world_size > 1, timeout=COLLECTIVE_TIMEOUT):
        measurements = PeakMeasurements(
            device=device,
            ranks=ranks,
            on_progress=on_progress,
        )
        measurements.run()
    if measurements.copy is None:
        return None
    return Machine(
        device="cuda" if device.type == "cuda" else "cpu",
        measured_at=time.time(),
        hardware=environment.describe_hardware(),
        software=environment.describe_software(),
        settings=environment.describe_settings(),
        matmuls=measurements.matmuls,
        copy=measurements.copy,
        all_reduces=measurements.all_reduces,
    )


def measure_rank(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Measure at one rank; rank 0 leaves the record in a folder of FOLDER."""

    def report_progress(measured_now: str) -> None:
        """Write what is being measured, for the command that waits; lost progress does no harm."""
        if ranks.is_rank_0:
            progress = json.dumps({"now": measured_now})
            write_atomically(folder.progress_path, progress, durable=False)

    request = decode_file(Request, folder.assignment_path, REQUEST_FORMAT)
    machine = measure(request, ranks, report_progress)
    if machine is not None:
        write(folder.path / PEAKS_FOLDER, machine)
    return entered
