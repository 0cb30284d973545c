"""What a machine can do: `torchrun -m harness.hardware.measured_peaks FOLDER` reads FOLDER/trial.json, leaves FOLDER/rank<N>.json.

Rank 0 alone measures products and copies while the others wait; then all reduce together.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from harness.core.errors import HarnessError, one_line
from harness.core.paths import TrialFolder, write_atomically
from harness.core.processes import die_with_parent
from harness.hardware.machine import AllReduce, Copy, Layout, Machine, Matmul, Timing
from harness.hardware.repeat import repeat, runner
from harness.records import environment
from harness.records.decode import FileFormat, decode_file
from harness.training.ranks import Ranks, all_reduce_min, choose_device, process_group

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
AMPERE = 8  # the compute capability from which on GPUs have TensorFloat-32 and bf16
LAYOUTS: tuple[Layout, ...] = ("nn", "nt", "tn")
LONGEST = 1 / 16  # seconds: after a product that took longer no larger one is measured
KIB, MIB = 2**10, 2**20
COLLECTIVE_TIMEOUT = 600.0  # seconds that a rank waits for the others


REQUEST_FORMAT = FileFormat(name="request for peaks")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What `trial.json` asks for."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    quick: bool = False


@dataclass(frozen=True, kw_only=True)
class Extent:
    """How much is measured."""

    sizes: Sequence[int]
    copies: Sequence[int]  # bytes of arrays that fit into caches; one far larger is always copied
    reduces: Sequence[int]  # bytes
    repeats: int
    least: float  # seconds that a repeat should take

    @staticmethod
    def of(request: Request, device: torch.device) -> Extent:
        if request.quick:
            return Extent(sizes=(128, 512), copies=(MIB,), reduces=(4, MIB), repeats=3, least=0.02)
        gpu = device.type == "cuda"
        return Extent(
            sizes=(512, 1024, 2048, 4096, 8192, 16384)
            if gpu
            else (128, 256, 512, 1024, 2048, 4096),
            copies=(MIB, 16 * MIB, 128 * MIB) if gpu else (64 * KIB, 256 * KIB, MIB, 8 * MIB),
            reduces=(4, 256, 4 * KIB, 64 * KIB, MIB, 8 * MIB, 64 * MIB),
            repeats=6,
            least=0.05,
        )


@dataclass
class Probe:
    """The measurements at one rank."""

    extent: Extent
    device: torch.device
    ranks: Ranks
    tell: Callable[[str], None]
    matmuls: list[Matmul] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    all_reduces: list[AllReduce] = field(default_factory=list)

    def run(self) -> None:
        if self.ranks.is_rank_0:
            for threads in self.threads():
                for dtype in dtypes(self.device):
                    self._matmuls(dtype, threads)
            for threads in self.threads():
                self._copies(threads)
        if self.ranks.world_size > 1:
            all_reduce_min(self.device, 0)  # the others wait here for rank 0
            self._all_reduces()

    def threads(self) -> Iterator[int | None]:
        """Set torch to one thread, then to one a core; on a GPU there is nothing to set."""
        if self.device.type == "cuda":
            yield None
            return
        for threads in sorted({1, len(os.sched_getaffinity(0))}):
            torch.set_num_threads(threads)
            yield threads

    def _time(self, call: Callable[[], object]) -> Timing:
        return repeat(
            runner(call, self.device), repeats=self.extent.repeats, least=self.extent.least
        )

    def _matmuls(self, dtype: str, threads: int | None) -> None:
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        layouts: Sequence[Layout] = LAYOUTS
        for size in self.extent.sizes:
            self.tell(f"product of {size}² {dtype}{_with(threads)}")
            calls = products(size, DTYPES[dtype], self.device)
            layouts = self._fast(calls, layouts)
            timing = self._time(calls[layouts[0]])
            self.matmuls.append(
                Matmul(dtype=dtype, layout=layouts[0], size=size, threads=threads, timing=timing)
            )
            if timing.best > LONGEST:
                break

    def _fast(
        self, calls: Mapping[Layout, Callable[[], object]], layouts: Sequence[Layout]
    ) -> list[Layout]:
        """The fastest first, without those that take twice as long: a CPU without bf16 has layouts 70 times slower."""
        if len(layouts) == 1:
            return list(layouts)
        runs = {layout: runner(calls[layout], self.device) for layout in layouts}
        spent = {layout: min(run(1) for _ in range(3)) for layout, run in runs.items()}
        return [
            layout
            for layout in sorted(spent, key=spent.__getitem__)
            if spent[layout] < 2 * min(spent.values())
        ]

    def _copies(self, threads: int | None) -> None:
        largest = far_larger_than_cache(self.device)
        sizes = [size for size in self.extent.copies if size < largest] + [largest]
        for size in sizes:
            self.tell(f"copy of {size / MIB:g} MiB{_with(threads)}")
            source = torch.ones(size, dtype=torch.uint8, device=self.device)
            target = torch.zeros_like(source)
            self._copy("memory", source, target, threads)
            if self.device.type == "cuda":
                pinned = torch.ones(size, dtype=torch.uint8, pin_memory=True)
                self._copy("to-device", pinned, target, threads)
                self._copy("from-device", source, pinned, threads)

    def _copy(
        self,
        path: Literal["memory", "to-device", "from-device"],
        source: torch.Tensor,
        target: torch.Tensor,
        threads: int | None,
    ) -> None:
        timing = self._time(lambda: target.copy_(source, non_blocking=True))
        self.copies.append(
            Copy(direction=path, bytes=source.nbytes, threads=threads, timing=timing)
        )

    def _all_reduces(self) -> None:
        world = self.ranks.world_size
        for size in self.extent.reduces:
            self.tell(f"all-reduce of {size} bytes at {world} ranks")
            values = torch.ones(size // 4, device=self.device)
            dist.all_reduce(values)
            if not bool((values == world).all()):
                raise HarnessError(
                    f"an all-reduce of ones at {world} ranks gave {float(values[0])}"
                )
            values.zero_()  # sums of sums would overflow
            timing = repeat(
                self._together(values), repeats=self.extent.repeats, least=self.extent.least
            )
            self.all_reduces.append(AllReduce(bytes=size, ranks=world, timing=timing))

    def _together(self, values: torch.Tensor) -> Callable[[int], float]:
        """All ranks begin together and all learn the time of the slowest, so that all go on alike."""
        alone = runner(lambda: dist.all_reduce(values), self.device)

        def run(calls: int) -> float:
            dist.barrier()
            return -all_reduce_min(self.device, -round(alone(calls) * 1e9))[0] / 1e9

        return run


def products(
    size: int, dtype: torch.dtype, device: torch.device
) -> dict[Layout, Callable[[], object]]:
    """Products of random matrices, which draw more power than zeros do, by layout."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    c = torch.empty_like(a)
    return {
        "nn": lambda: torch.mm(a, b, out=c),
        "nt": lambda: torch.mm(a, b.t(), out=c),
        "tn": lambda: torch.mm(a.t(), b, out=c),
    }


def dtypes(device: torch.device) -> list[str]:
    """Those that the device multiplies: fp16 on CPUs is left out, as few have it and the rest take minutes."""
    if device.type == "cpu":
        return ["fp32", "bf16"]
    ampere = torch.cuda.get_device_capability(device)[0] >= AMPERE
    return ["fp32", "tf32", "bf16", "fp16"] if ampere else ["fp32", "fp16"]


def far_larger_than_cache(device: torch.device) -> int:
    """Bytes of an array: eight times all last-level caches, at least 256 MiB, at most an eighth of the memory."""
    if device.type == "cuda":
        return min(1024 * MIB, torch.cuda.get_device_properties(device).total_memory // 8)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(256 * MIB, 8 * (cache_bytes() or 0)), memory // 8)


def cache_bytes(devices: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """All last-level caches together, as Linux tells; None where it does not."""
    caches: dict[tuple[int, str], int] = {}
    try:
        for cache in devices.glob("cpu[0-9]*/cache/index[0-9]*"):
            level, shared, size = (
                (cache / name).read_text().strip() for name in ("level", "shared_cpu_list", "size")
            )
            caches[int(level), shared] = int(size.removesuffix("K")) * KIB
    except (OSError, ValueError):
        return None
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last) or None


def _with(threads: int | None) -> str:
    return "" if threads is None else f", {threads} thread{'s' if threads > 1 else ''}"


def measure(request: Request, ranks: Ranks, tell: Callable[[str], None]) -> Machine:
    """At every rank; the all-reduces are known to all, the rest to rank 0."""
    device = choose_device(request.device, ranks)
    with process_group(ranks, device, needed=ranks.world_size > 1, timeout=COLLECTIVE_TIMEOUT):
        probe = Probe(extent=Extent.of(request, device), device=device, ranks=ranks, tell=tell)
        probe.run()
    return Machine(
        device="cuda" if device.type == "cuda" else "cpu",
        quick=request.quick,
        measured_at=time.time(),
        hardware=environment.describe_hardware(),
        software=environment.describe_software(),
        settings=environment.describe_settings(),
        cache_bytes=None if device.type == "cuda" else cache_bytes(),
        matmuls=probe.matmuls,
        copies=probe.copies,
        all_reduces=probe.all_reduces,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Ends the process: 0 when all is measured, 1 when something failed."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.hardware.measured_peaks", description=__doc__
    )
    parser.add_argument("folder", type=Path, help="the folder that holds trial.json")
    folder = TrialFolder(parser.parse_args(arguments).folder)
    die_with_parent()
    ranks = Ranks.from_environment()

    def tell(now: str) -> None:
        if ranks.is_rank_0:
            write_atomically(folder.progress_path, json.dumps({"now": now}), durable=False)

    result: dict[str, Any]
    try:
        request = decode_file(Request, folder.assignment_path, REQUEST_FORMAT)
        result = {"machine": asdict(measure(request, ranks, tell)), "failure": None}
    except Exception as error:
        traceback.print_exc()
        known = isinstance(error, HarnessError)
        said = str(error) if known else f"{type(error).__name__}: {one_line(error)}"
        result = {"machine": None, "failure": f"rank {ranks.rank}: {said}"}
    write_atomically(folder.result_path(ranks.rank), json.dumps(result, indent=1) + "\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if result["failure"] is None else 1)  # a failed rank must not wait for the others


if __name__ == "__main__":
    main()
