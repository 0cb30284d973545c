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
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import pynvml
import torch

from harness.core.errors import one_line
from harness.records.record import THROTTLED_SHARE, Numbers, Telemetry

T = TypeVar("T")

SAMPLE_INTERVAL = 1.0  # seconds
JOIN_TIMEOUT = 5.0  # seconds that the thread has to end
MIN_METERED = 5.0  # seconds of segments below which the lag of an energy counter matters
FREQUENCY = (
    "/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"  # kHz, as the kernel measures it
)
# The clock event reasons that mean throttling: the GPU runs slower than it could for lack of power or
# of cooling. The other reasons are none: an idle GPU, and clocks that somebody has set.
THROTTLING = {
    "sw_power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hw_slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
    "sw_thermal_slowdown": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "hw_thermal_slowdown": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "hw_power_brake_slowdown": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}
THROTTLED, PROCESSES = "gpu throttle reasons", "gpu processes"  # what a sample has besides readings
# Functions of a GPU's handle, by the reading; `gpu_utilization` is the share of the last sampling period
# in which a kernel ran. Temperature and throttle reasons have newer names, which older drivers lack.
SENSORS: Mapping[str, Callable[[Any], Any]] = {
    "gpu_utilization": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    "gpu_memory_bytes": lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "gpu_temperature_c": lambda gpu: pynvml.nvmlDeviceGetTemperature(
        gpu, pynvml.NVML_TEMPERATURE_GPU
    ),
    "gpu_sm_clock_hz": lambda gpu: 1e6 * pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
    "gpu_power_w": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
    THROTTLED: lambda gpu: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
    PROCESSES: lambda gpu: foreign_processes(gpu),
}
# What this machine, driver or user does not have; other errors are problems.
UNAVAILABLE = (
    FileNotFoundError,
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_NoPermission,
    pynvml.NVMLError_FunctionNotFound,
)


class TelemetrySampler:
    """The telemetry of one trial at one rank. As a context manager, it samples in its block.

    Segments that begin within the first `warmup` steps do not count. A reading that raises stops no
    training: it is absent, and the rank's log has the first error of its kind.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        warmup: int,
        cores: Sequence[int] = (),
        interval: float = SAMPLE_INTERVAL,
    ) -> None:
        """Prepare to sample every `interval` seconds; `cores` are the trial's, none for all.

        Without NVML there are no readings of a GPU.
        """
        self.cores, self.warmup, self.interval = cores, warmup, interval
        # A daemon, so that a thread that hangs in a driver does not keep the process alive.
        self.thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)
        self._ended = threading.Event()
        self._failed: set[str] = set()  # readings that have raised
        self._sensors: dict[str, Callable[[], Any]] = {
            "cpu_frequency_hz": cpu_frequency,
            "load_per_core": load_per_core,
        }
        self._gpu: Any = None  # NVML's handle
        if device.type == "cuda":
            self._gpu = self._attempt("gpu", partial(_open_gpu, device))
        if self._gpu is not None:
            for name, read in SENSORS.items():
                self._sensors[name] = partial(read, self._gpu)
        # The counters at the beginning of the segment, None outside those that count.
        self._segment: dict[str, float] | None = None
        self._steps_begun = 0  # those of the warm-up, too
        # Of the segments that count: steps, and what was added to the counters.
        self._steps = 0
        self._spent: Counter[str] = Counter()
        self._samples: list[dict[str, Any]] = []  # what could be read, by its name

    def __enter__(self) -> TelemetrySampler:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.thread.join(JOIN_TIMEOUT)
        if self._gpu is not None and not self.thread.is_alive():
            self._attempt("gpu", pynvml.nvmlShutdown)

    def begin_segment(self) -> None:
        """Begin a segment of nothing but training."""
        if self._steps_begun >= self.warmup:
            self._segment = self._read_counters()

    def end_segment(self, steps: int) -> None:
        """End the segment, which has trained for `steps` steps."""
        self._steps_begun += steps
        before, self._segment = self._segment, None
        if before is not None:
            self._steps += steps
            self._spent.update(self._read_counters())
            self._spent.subtract(before)

    def report(self) -> Telemetry:
        """Return all that was measured so far."""
        samples = list(self._samples)
        read = {name for sample in samples for name in sample}
        readings: dict[str, Numbers] = {}  # NaN where a sample could not be read
        for name in sorted(read - {THROTTLED, PROCESSES}):
            values = [sample.get(name, np.nan) for sample in samples]
            readings[name] = np.array(values, dtype=np.float32)
        shares = core_shares(self._spent)
        if THROTTLED in read:
            bits = np.array([sample[THROTTLED] for sample in samples if THROTTLED in sample])
            for reason, bit in THROTTLING.items():
                shares[f"{THROTTLED_SHARE}{reason}"] = float(np.mean(bits & bit != 0))
        foreign: list[str] | None = None
        if PROCESSES in read:
            foreign = sorted({name for sample in samples for name in sample.get(PROCESSES, ())})
        joules = self._spent.get("joules")
        # NVML updates its counter only every 20 to 100 ms (Yang, Adamek and Armour, SC 2024,
        # arXiv:2312.02741), and it may be reset.
        if joules is not None and (joules < 0 or self._spent["wall"] < MIN_METERED):
            joules = None
        return Telemetry(
            seconds=self._spent["wall"],
            steps=self._steps,
            readings=readings,
            shares=shares,
            joules=joules,
            foreign_processes=foreign,
        )

    def _read_counters(self) -> dict[str, float]:
        """Return the counters of the host and of the GPU's energy, as far as they can be read."""
        counters = self._attempt("host counters", partial(core_seconds, self.cores)) or {}
        if self._gpu is not None:
            read = partial(pynvml.nvmlDeviceGetTotalEnergyConsumption, self._gpu)
            millijoules = self._attempt("gpu energy", read)
            if millijoules is not None:  # GPUs before Volta do not count it
                counters["joules"] = millijoules / 1e3
        return counters

    def _watch(self) -> None:
        """Take samples during segments, in the thread; drop one if its segment ends before it is done."""
        while not self._ended.wait(self.interval):
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

    def _attempt(self, name: str, read: Callable[[], T]) -> T | None:
        """Return a reading, None where it is unavailable; print the first error of its name."""
        try:
            return read()
        except UNAVAILABLE:
            return None
        except Exception as error:
            if name not in self._failed:
                self._failed.add(name)
                print(f"telemetry: {name}: {type(error).__name__}: {one_line(error)}", flush=True)
            return None


def load_per_core() -> float:
    """Return the machine's load average over the last minute, per core."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def cpu_frequency() -> float:
    """Return the frequency in Hz of the first core that this process may use."""
    path = Path(FREQUENCY.format(core=min(os.sched_getaffinity(0))))
    return 1e3 * int(path.read_text(encoding="ascii"))


def core_seconds(cores: Sequence[int] = ()) -> dict[str, float]:
    """Return counters in seconds, whose differences `core_shares` takes.

    `cores` are those that the trial is bound to, if it is to any: work on other ones, such as a trial
    in another lane, does not slow this one.
    """
    of_core = psutil.cpu_times(percpu=True)
    busy = list(map(_busy, of_core))
    stolen = sum(times.steal for times in of_core)
    seconds = {
        "wall": time.perf_counter(),
        "total": sum(busy) + stolen + sum(times.idle + times.iowait for times in of_core),
        "busy": sum(busy),
        "stolen": stolen,  # cores had work, and the hypervisor ran other machines instead
        "host": sum(busy[core] for core in cores or range(len(busy))),
        "process": sum(os.times()[:4]),  # with that of children that have ended
    }
    for child in multiprocessing.active_children():  # loader workers
        with suppress(psutil.Error):  # it has just ended
            seconds["process"] += sum(psutil.Process(child.pid).cpu_times()[:2])
    with suppress(OSError):  # a kernel without this counter
        # Nanoseconds on a core, nanoseconds in a queue for one, times on a core: of the main thread,
        # which trains.
        schedule = Path("/proc/self/schedstat").read_text(encoding="ascii").split()
        seconds["waited"] = int(schedule[1]) / 1e9
    return seconds


def core_shares(spent: Mapping[str, float]) -> dict[str, float]:
    """Return what cores were used for, given differences of `core_seconds`.

    - `cpu_use`, `cpu_steal`: shares of all cores of the host
    - `host_cpu`: cores in use, of those that the trial may use
    - `process_cpu`: cores that this rank and its loader workers used
    - `cpu_wait`: share of the time in which the main thread was ready and had no core

    The kernel counts the time of cores in ticks, usually of 10 ms; over less there are no shares.
    """
    if not spent.get("total"):
        return {}
    shares = {
        "cpu_use": spent["busy"] / spent["total"],
        "cpu_steal": spent["stolen"] / spent["total"],
        "host_cpu": spent["host"] / spent["wall"],
        "process_cpu": spent["process"] / spent["wall"],
    }
    if "waited" in spent:
        shares["cpu_wait"] = spent["waited"] / spent["wall"]
    return shares


def foreign_processes(gpu: Any) -> set[str] | None:
    """Return the processes that compute on a GPU and are not of this trial, None if that is unknown.

    In a container, NVML may list the process ids of the host's namespace, or none. This process
    computes on the GPU: if its own id is not listed, the others cannot be trusted either.
    """
    pids = {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
    if os.getpid() not in pids:
        return None
    return set(filter(None, map(foreign_process, pids)))


def foreign_process(pid: int) -> str | None:
    """Return "pid 123 python" unless a process or an ancestor has this process's command line.

    All ranks of a trial have the same command line, which names the trial's folder, and the
    processes that a rank starts have it as their parent.
    """
    command = psutil.Process().cmdline()
    try:
        process = psutil.Process(pid)
        if any(relative.cmdline() == command for relative in (process, *process.parents())):
            return None
        return f"pid {pid} {process.name()}"
    except psutil.Error:
        return f"pid {pid}"  # it has ended, or it is hidden from this user


def _busy(times: Any) -> float:
    """Return the seconds in which cores ran something of this host.

    The time of guests is part of that of users already.
    """
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


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
