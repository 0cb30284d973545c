"""Watches the GPU and the host from a thread while a rank trains, a sample a second.

Only what happens during segments of training counts. The training loop says where a segment begins
and ends, and reads the CPU time there, outside its timed region. A sample during which a segment ends
is dropped.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pynvml
import torch

from harness.core.errors import one_line
from harness.records.record import Telemetry

SAMPLE_INTERVAL = 1.0  # seconds
# Seconds of segments below which the kernel's clock ticks, usually of 10 ms, are too coarse for shares.
MIN_SECONDS = 1.0
# The clock event reasons of a GPU that heat or its board slows down. The other reasons are none: a GPU that
# idles or has clocks that somebody has set, and one at its power limit, which is the normal speed of a busy
# one: an H200 reported that in 75% to 100% of the samples of DistilBERT, with its clock within 9% of the
# highest.
THROTTLING = (
    pynvml.nvmlClocksEventReasonHwSlowdown
    | pynvml.nvmlClocksEventReasonSwThermalSlowdown
    | pynvml.nvmlClocksEventReasonHwThermalSlowdown
    | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
)


def is_throttled(gpu: Any) -> bool:
    """Return whether heat or its board slows a GPU down, by a name that older drivers have too."""
    return bool(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu) & THROTTLING)


def foreign_processes(gpu: Any) -> int | None:
    """Return how many processes compute on a GPU and are not of this trial, None if that is unknown.

    In a container, NVML may list the process ids of the host's namespace, or none. This process
    computes on the GPU: if its own id is not listed, the others cannot be trusted either.
    """
    pids = {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
    if os.getpid() not in pids:
        return None
    return sum(map(is_foreign, pids))


def is_foreign(pid: int) -> bool:
    """Return whether a process is none of this trial's: its ranks have the same command line."""
    try:
        command = psutil.Process(pid).cmdline()
    except psutil.Error:  # it has ended, or it is hidden from this user
        return True
    return bool(command != psutil.Process().cmdline())


# Functions of a GPU's handle, by the name of the reading, which ends in its unit; `gpu_utilization` is the
# share of the last sampling period in which a kernel ran.
SENSORS: Mapping[str, Callable[[Any], float | None]] = {
    "gpu_utilization": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    "gpu_sm_clock_mhz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
    "gpu_power_w": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
    "gpu_throttled": is_throttled,
    "gpu_foreign_processes": foreign_processes,
}


@dataclass(eq=False)
class TelemetrySampler:
    """The telemetry of one trial at one rank. As a context manager, it samples in its block.

    Segments that begin within the first `warmup` steps do not count. A reading that raises stops no
    training: it is absent, and the rank's log has the first error of its kind.
    """

    device: torch.device  # without NVML there are no readings of a GPU
    warmup: int
    cores: Sequence[int] = ()  # of the trial; none for all

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._failed: set[str] = set()  # readings that have raised
        self._sensors: dict[str, Callable[[], Any]] = {"load_per_core": load_per_core}
        self._counters = partial(self._attempt, "host counters", partial(core_seconds, self.cores))
        if self.device.type == "cuda":
            gpu = self._attempt("gpu", partial(_open_gpu, self.device))
            if gpu is not None:
                for name, read in SENSORS.items():
                    self._sensors[name] = partial(read, gpu)
        # The counters at the beginning of the segment, None outside those that count.
        self._segment: dict[str, float] | None = None
        self._steps_begun = 0  # those of the warm-up, too
        # What was added to the counters in segments that count.
        self._spent: Counter[str] = Counter()
        self._samples: list[dict[str, float]] = []  # what could be read, by its name

    def __enter__(self) -> TelemetrySampler:
        # A daemon, so that a thread that hangs in a driver does not keep the process alive.
        threading.Thread(target=self._watch, name="telemetry", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def begin_segment(self) -> None:
        """Begin a segment of nothing but training."""
        if self._steps_begun >= self.warmup:
            self._segment = self._counters() or {}

    def end_segment(self, steps: int) -> None:
        """End the segment, which has trained for `steps` steps."""
        self._steps_begun += steps
        before, self._segment = self._segment, None
        if before:
            self._spent.update(self._counters() or {})
            self._spent.subtract(before)

    def report(self) -> Telemetry:
        """Return all that was measured so far."""
        samples = list(self._samples)
        readings = {}
        for name in sorted(set().union(*samples)):
            values = [sample.get(name, np.nan) for sample in samples]
            readings[name] = np.array(values, dtype=np.float32)
        return Telemetry(readings=readings, shares=core_shares(self._spent))

    def _watch(self) -> None:
        """Take samples during segments, in the thread; drop one if its segment ends before it is done."""
        while not self._ended.wait(SAMPLE_INTERVAL):
            segment = self._segment
            if segment is None:
                continue
            sample = {}
            for name, read in self._sensors.items():
                value = self._attempt(name, read)
                if value is not None:
                    sample[name] = value
            if self._segment is segment:
                self._samples.append(sample)

    def _attempt(self, name: str, read: Callable[[], Any]) -> Any:
        """Return a reading, None where it fails; print the first error of its name."""
        try:
            return read()
        except Exception as error:
            if name not in self._failed:
                self._failed.add(name)
                print(f"telemetry: {name}: {type(error).__name__}: {one_line(error)}", flush=True)
            return None


def load_per_core() -> float:
    """Return the machine's load average over the last minute, per core."""
    last_minute, _, _ = os.getloadavg()
    return last_minute / (os.cpu_count() or 1)


def core_seconds(cores: Sequence[int] = ()) -> dict[str, float]:
    """Return counters in seconds, whose differences `core_shares` takes.

    `cores` are those that the trial is bound to, if it is to any: work on other ones, such as a trial
    in another lane, does not slow this one.
    """
    of_core = psutil.cpu_times(percpu=True)
    of_host = 0.0  # in which a core ran something of this host; that of guests is of users already
    for core in cores or range(len(of_core)):
        times = of_core[core]
        of_host += times.user + times.nice + times.system + times.irq + times.softirq
    of_process = sum(os.times()[:4])  # with that of children that have ended
    for child in multiprocessing.active_children():  # of the loader
        with suppress(psutil.Error):  # it has just ended
            worker = psutil.Process(child.pid).cpu_times()
            of_process += worker.user + worker.system
    wall = time.perf_counter()
    seconds = {
        "wall": wall,
        "all cores": wall * len(of_core),
        # Cores had work, and the hypervisor ran other machines instead.
        "stolen": sum(times.steal for times in of_core),
        "host": of_host,
        "process": of_process,
    }
    with suppress(OSError):  # a kernel without this counter
        # Of the main thread, which trains: nanoseconds on a core, nanoseconds in a queue for one, times on
        # a core.
        _, in_queue, _ = Path("/proc/self/schedstat").read_text(encoding="ascii").split()
        seconds["waited"] = int(in_queue) / 1e9
    return seconds


def core_shares(spent: Mapping[str, float]) -> dict[str, float]:
    """Return what cores were used for, given differences of `core_seconds`; of a short time, nothing.

    - `cpu_steal`: share of all cores of the host
    - `host_cpu`: cores in use, of those that the trial may use
    - `process_cpu`: cores that this rank and its loader workers used
    - `cpu_wait`: share of the time in which the main thread was ready and had no core
    """
    seconds = spent.get("wall", 0.0)
    if seconds < MIN_SECONDS:
        return {}
    shares = {
        "cpu_steal": spent["stolen"] / spent["all cores"],
        "host_cpu": spent["host"] / seconds,
        "process_cpu": spent["process"] / seconds,
    }
    if "waited" in spent:
        shares["cpu_wait"] = spent["waited"] / seconds
    return shares


def _open_gpu(device: torch.device) -> Any:
    """Return NVML's handle of the GPU that torch calls `device`, or of the slice of one.

    By its UUID, as NVML counts all GPUs of the machine, CUDA only those in CUDA_VISIBLE_DEVICES.
    Raises pynvml.NVMLError without NVML or such a GPU.
    """
    uuid = torch.cuda.get_device_properties(device).uuid
    pynvml.nvmlInit()
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
