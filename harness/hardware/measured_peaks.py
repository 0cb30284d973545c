"""Measures what a machine can do: the task `peaks` of `harness.training.worker`.

It reads the device from FOLDER/trial.json, and leaves the record in FOLDER/peaks.

Rank 0 measures matrix products and a copy while the other ranks wait; then all ranks reduce
together.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Literal

import torch
import torch.distributed as dist

from harness.core.cores import usable_cores
from harness.core.errors import HarnessError
from harness.core.paths import TrialFolder, write_atomically
from harness.hardware.machine import PEAKS_FOLDER, Machine, Timing, write
from harness.records import environment
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
COPIED_BYTES = 1024 * MIB  # which no cache holds
REPEATS = 5
MIN_SECONDS = 0.05  # of a repeat

# Makes a number of calls and returns the seconds that they took.
Run = Callable[[int], float]
OnProgress = Callable[[str], None]


def measure_products(device: torch.device, on_progress: OnProgress) -> list[Timing]:
    """Measure products of matrices of growing sizes, up to one that takes longer than MAX_SECONDS."""
    timings = []
    sizes = GPU_SIZES if device.type == "cuda" else CPU_SIZES
    for dtype in dtypes(device):
        precision = "high" if dtype == "tf32" else "highest"
        torch.set_float32_matmul_precision(precision)
        for size in sizes:
            on_progress(f"product of {size}² {dtype}")
            call = product(size, DTYPES[dtype], device)
            seconds = repeat(runner(call, device))
            timing = Timing(
                call="matmul",
                dtype=dtype,
                size=size,
                seconds=seconds,
            )
            timings.append(timing)
            if min(seconds) > MAX_SECONDS:
                break
    return timings


def measure_copy(device: torch.device, on_progress: OnProgress) -> Timing:
    """Measure the copy of one array into another, both in main memory."""
    size = min(COPIED_BYTES, memory_bytes(device) // 8)
    on_progress(f"copy of {size / MIB:g} MiB")
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    run = runner(lambda: target.copy_(source), device)
    seconds = repeat(run)
    return Timing(call="copy", dtype="bytes", size=size, seconds=seconds)


def measure_all_reduces(
    device: torch.device, world_size: int, on_progress: OnProgress
) -> list[Timing]:
    """Measure sums in fp32 over all ranks; raises HarnessError if one of them is wrong."""
    timings = []
    for size in ALL_REDUCE_BYTES:
        on_progress(f"all-reduce of {size} bytes at {world_size} ranks")
        values = torch.ones(size // 4, device=device)
        dist.all_reduce(values)
        is_right = (values == world_size).all()
        if not is_right:
            wrong = f"an all-reduce of ones at {world_size} ranks gave {float(values[0])}"
            raise HarnessError(wrong)
        values.zero_()  # sums of sums would overflow
        seconds = repeat(all_reduce_run(values))
        timing = Timing(
            call="all-reduce", dtype="fp32", size=size, ranks=world_size, seconds=seconds
        )
        timings.append(timing)
    return timings


def all_reduce_run(values: torch.Tensor) -> Run:
    """Return a function that times all-reduces of `values`, with the same result at all ranks.

    All ranks begin together and get the time of the slowest, so that all of them decide alike how
    many calls to make next.
    """
    run_here = runner(lambda: dist.all_reduce(values), values.device)

    def run(calls: int) -> float:
        """Return the seconds of `calls` calls at the slowest rank."""
        dist.barrier()
        nanoseconds = round(run_here(calls) * 1e9)
        (smallest,) = all_reduce_min(-nanoseconds)  # that of the slowest rank
        return -smallest / 1e9

    return run


def repeat(run: Run) -> list[float]:
    """Warm up, then return the seconds of a call in each of REPEATS repeats.

    A repeat makes as many calls as take MIN_SECONDS. The number of calls is doubled until all
    repeats take that long: an interruption can make a few calls look long.
    """
    run(1)  # a first call may load libraries or allocate memory
    calls = 1
    while True:
        spans = [run(calls)]
        while spans[-1] >= MIN_SECONDS and len(spans) < REPEATS:
            spans.append(run(calls))
        if spans[-1] >= MIN_SECONDS:
            return [span / calls for span in spans]
        calls *= 2


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

    The second one is transposed as in a linear layer. They are random because a GPU draws less
    power for zeros, and then clocks higher.
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


def memory_bytes(device: torch.device) -> int:
    """Return the bytes of the device's memory."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def measure(
    device_name: Literal["auto", "cpu", "cuda"],
    ranks: Ranks,
    on_progress: OnProgress,
) -> Machine | None:
    """Measure this machine, on a CPU with a thread for each core; rank 0 gets what was measured.

    Every rank must call it. `on_progress` gets what is being measured. Raises HarnessError if an
    all-reduce gives a wrong sum.
    """
    device = choose_device(device_name, ranks)
    if device.type == "cpu":
        torch.set_num_threads(len(usable_cores()))
    has_other_ranks = ranks.world_size > 1
    timings: list[Timing] = []
    with process_group(ranks, device, needed=has_other_ranks, timeout=COLLECTIVE_TIMEOUT):
        if ranks.rank == 0:
            timings += measure_products(device, on_progress)
            timings.append(measure_copy(device, on_progress))
        if has_other_ranks:
            all_reduce_min(0)  # the other ranks wait here for rank 0
            timings += measure_all_reduces(device, ranks.world_size, on_progress)
    if ranks.rank != 0:
        return None
    return Machine(
        device="cuda" if device.type == "cuda" else "cpu",
        measured_at=time.time(),
        hardware=environment.describe_hardware(),
        software=environment.describe_software(),
        settings=environment.describe_settings(),
        timings=timings,
    )


def measure_rank(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Measure at one rank; rank 0 leaves the record in a folder of FOLDER."""

    def report_progress(measured_now: str) -> None:
        """Write what is being measured, for the command that waits; lost progress does no harm."""
        if ranks.rank == 0:
            progress = json.dumps({"now": measured_now})
            write_atomically(folder.progress_path, progress, durable=False)

    request = json.loads(folder.assignment_path.read_text(encoding="utf-8"))
    machine = measure(request["device"], ranks, report_progress)
    if machine is not None:
        write(folder.path / PEAKS_FOLDER, machine)
    return entered
