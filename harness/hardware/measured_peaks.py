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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from harness.core.cores import usable_cores
from harness.core.errors import HarnessError
from harness.core.paths import TrialFolder, write_atomically
from harness.core.text import counted
from harness.hardware.machine import (
    PEAKS_FOLDER,
    Copy,
    Layout,
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
LAYOUTS: tuple[Layout, ...] = ("nn", "nt", "tn")
MAX_SECONDS = 1 / 16  # after a product that took longer, no larger one is measured
SLOW_LAYOUT = 2  # a layout that takes this many times as long as the fastest is dropped
TRIAL_RUNS = 3  # of each layout, to find the fastest
KIB, MIB = 2**10, 2**20
CACHE_MULTIPLE = 8  # how much larger than the caches the largest array is

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
    quick: bool = False  # few sizes and few repeats, for rough figures in seconds


@dataclass(frozen=True, kw_only=True)
class Extent:
    """How much is measured."""

    matmul_sizes: Sequence[int]  # rows and columns
    copy_bytes: Sequence[int]  # of arrays that fit in caches; one far larger is always copied, too
    all_reduce_bytes: Sequence[int]  # at each rank
    repeats: int  # at most, of each call
    min_seconds: float  # of a repeat

    @staticmethod
    def of(request: Request, device: torch.device) -> Extent:
        """Return how much to measure on a device."""
        if request.quick:
            return Extent(
                matmul_sizes=_matmul_sizes(128, 512, 4),
                copy_bytes=(MIB,),
                all_reduce_bytes=(4, MIB),
                repeats=3,
                min_seconds=0.02,
            )
        matmul_sizes: Sequence[int]
        copy_bytes: Sequence[int]
        if device.type == "cuda":
            matmul_sizes = _matmul_sizes(512, 16384, 2)
            copy_bytes = (MIB, 16 * MIB, 128 * MIB)
        else:
            matmul_sizes = _matmul_sizes(128, 4096, 2)
            copy_bytes = (64 * KIB, 256 * KIB, MIB, 8 * MIB)
        return Extent(
            matmul_sizes=matmul_sizes,
            copy_bytes=copy_bytes,
            all_reduce_bytes=(4, 256, 4 * KIB, 64 * KIB, MIB, 8 * MIB, 64 * MIB),
            repeats=6,
            min_seconds=0.05,
        )


def _matmul_sizes(smallest: int, largest: int, factor: int) -> list[int]:
    """Return sizes that grow by `factor`."""
    sizes = []
    size = smallest
    while size <= largest:
        sizes.append(size)
        size *= factor
    return sizes


@dataclass
class PeakMeasurements:
    """The measurements at one rank.

    `run` fills the three lists; those of products and copies stay empty at ranks other than 0.
    """

    extent: Extent
    device: torch.device  # of this rank
    ranks: Ranks  # which rank this is, and how many there are
    on_progress: Callable[[str], None]  # gets what is being measured
    matmuls: list[Matmul] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    all_reduces: list[TimedAllReduce] = field(default_factory=list)

    def run(self) -> None:
        """Measure everything."""
        if self.ranks.is_rank_0:
            for threads in self.thread_counts():
                for dtype in dtypes(self.device):
                    self._measure_matmuls(dtype, threads)
            for threads in self.thread_counts():
                self._measure_copies(threads)
        if self.ranks.world_size > 1:
            all_reduce_min(self.device, 0)  # the other ranks wait here for rank 0
            self._measure_all_reduces()

    def thread_counts(self) -> Iterator[int | None]:
        """Set torch to a single thread, then to one for each core, and yield the number each time.

        On a GPU there is nothing to set; it yields None once.
        """
        if self.device.type == "cuda":
            yield None
            return
        for threads in sorted({1, len(usable_cores())}):
            torch.set_num_threads(threads)
            yield threads

    def _repeat(self, run: Run) -> Timing:
        """Time repeats as the extent says."""
        return repeat(run, repeats=self.extent.repeats, min_seconds=self.extent.min_seconds)

    def _measure_matmuls(self, dtype: str, threads: int | None) -> None:
        """Measure products of growing sizes, in the fastest layout of each.

        It ends after a product that took longer than MAX_SECONDS, or after the largest size.
        """
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        layouts: Sequence[Layout] = LAYOUTS
        for size in self.extent.matmul_sizes:
            self.on_progress(f"product of {size}² {dtype}{_with_threads(threads)}")
            calls = products(size, DTYPES[dtype], self.device)
            layouts = self._fast_layouts(calls, layouts)
            fastest = layouts[0]
            timing = self._repeat(runner(calls[fastest], self.device))
            self.matmuls.append(
                Matmul(dtype=dtype, layout=fastest, size=size, threads=threads, timing=timing)
            )
            if timing.best > MAX_SECONDS:
                break

    def _fast_layouts(
        self, calls: Mapping[Layout, Callable[[], object]], layouts: Sequence[Layout]
    ) -> list[Layout]:
        """Return the layouts from fast to slow, without those that are far slower than the fastest.

        A CPU without bf16 instructions has layouts that are 70 times slower: at larger sizes, even
        to try them would take minutes.
        """
        if len(layouts) == 1:
            return list(layouts)
        seconds: dict[Layout, float] = {}
        for layout in layouts:
            run = runner(calls[layout], self.device)
            seconds[layout] = min(run(1) for _ in range(TRIAL_RUNS))
        limit = SLOW_LAYOUT * min(seconds.values())
        from_fast_to_slow = sorted(layouts, key=lambda layout: seconds[layout])
        return [layout for layout in from_fast_to_slow if seconds[layout] < limit]

    def _measure_copies(self, threads: int | None) -> None:
        """Measure copies within memory and, on a GPU, to and from the host."""
        largest = far_larger_than_cache(self.device)
        sizes = [size for size in self.extent.copy_bytes if size < largest]
        for size in [*sizes, largest]:
            self.on_progress(f"copy of {size / MIB:g} MiB{_with_threads(threads)}")
            source = torch.ones(size, dtype=torch.uint8, device=self.device)
            target = torch.zeros_like(source)
            self._measure_copy("memory", source, target, threads)
            if self.device.type == "cuda":
                pinned = torch.ones(size, dtype=torch.uint8, pin_memory=True)
                self._measure_copy("to-device", pinned, target, threads)
                self._measure_copy("from-device", source, pinned, threads)

    def _measure_copy(
        self,
        direction: Literal["memory", "to-device", "from-device"],
        source: torch.Tensor,
        target: torch.Tensor,
        threads: int | None,
    ) -> None:
        """Measure the copy of one array into another."""
        run = runner(lambda: target.copy_(source, non_blocking=True), self.device)
        self.copies.append(
            Copy(
                direction=direction, bytes=source.nbytes, threads=threads, timing=self._repeat(run)
            )
        )

    def _measure_all_reduces(self) -> None:
        """Measure sums over all ranks; raises HarnessError if one of them is wrong."""
        world_size = self.ranks.world_size
        for size in self.extent.all_reduce_bytes:
            self.on_progress(f"all-reduce of {size} bytes at {world_size} ranks")
            values = torch.ones(size // 4, device=self.device)
            dist.all_reduce(values)
            if not bool((values == world_size).all()):
                raise HarnessError(
                    f"an all-reduce of ones at {world_size} ranks gave {float(values[0])}"
                )
            values.zero_()  # sums of sums would overflow
            timing = self._repeat(self._all_reduce_run(values))
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


def repeat(run: Run, *, repeats: int, min_seconds: float) -> Timing:
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


def products(
    size: int, dtype: torch.dtype, device: torch.device
) -> dict[Layout, Callable[[], object]]:
    """Return the product of two random matrices in each layout, as calls.

    The matrices are random because a GPU draws less power for zeros, and then clocks higher.
    """
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.randn(size, size, device=device).to(dtype)
    c = torch.empty_like(a)  # the same for all calls, so that none allocates
    return {
        "nn": lambda: torch.mm(a, b, out=c),
        "nt": lambda: torch.mm(a, b.t(), out=c),
        "tn": lambda: torch.mm(a.t(), b, out=c),
    }


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


def _with_threads(threads: int | None) -> str:
    """Return `, 2 threads`, or nothing for a GPU."""
    return "" if threads is None else f", {counted(threads, 'thread')}"


def measure(request: Request, ranks: Ranks, on_progress: Callable[[str], None]) -> Machine:
    """Measure this machine; call it at every rank.

    `on_progress` gets what is being measured. The record of rank 0 has everything, those of the
    other ranks only the all-reduces. Raises HarnessError if an all-reduce gives a wrong sum.
    """
    device = choose_device(request.device, ranks)
    with process_group(ranks, device, needed=ranks.world_size > 1, timeout=COLLECTIVE_TIMEOUT):
        measurements = PeakMeasurements(
            extent=Extent.of(request, device),
            device=device,
            ranks=ranks,
            on_progress=on_progress,
        )
        measurements.run()
    on_gpu = device.type == "cuda"
    return Machine(
        device="cuda" if on_gpu else "cpu",
        quick=request.quick,
        measured_at=time.time(),
        hardware=environment.describe_hardware(),
        software=environment.describe_software(),
        settings=environment.describe_settings(),
        cache_bytes=None if on_gpu else cache_bytes(),
        matmuls=measurements.matmuls,
        copies=measurements.copies,
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
    if ranks.is_rank_0:
        write(folder.path / PEAKS_FOLDER, machine)
    return entered
