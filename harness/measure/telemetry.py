"""Watches the GPU and the host from a separate thread while a rank trains.

Only what happens during segments of training counts. The training loop says where a segment begins
and ends. During segments the thread takes a sample every SAMPLE_INTERVAL seconds; a sample during
which a segment ends is dropped. What accumulates (energy, CPU time) is read by the training loop at
both ends of a segment, outside its timed region; energy only of segments that are likely long enough.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from harness.core.errors import one_line
from harness.measure.gpu import THROTTLING, NvmlGpu
from harness.measure.host import CoreUse, CoreUseTotals, Counters, ThisHost
from harness.records import record
from harness.records.series import Series

T = TypeVar("T")

SAMPLE_INTERVAL = 1.0  # seconds of training from sample to sample
MIN_METERED_SECONDS = 1.0  # that a segment must last for its energy to count; see `joules_between`
COUNTER_UPDATE = 0.1  # seconds after which NVML has updated its energy counter at the latest
MAX_WATTS = 5000.0  # more than any single GPU draws; above it, the counter was reset
JOIN_TIMEOUT = 5.0  # seconds that the thread has to end


def joules_between(before: int, after: int, seconds: float) -> float | None:
    """Return the energy between two readings of NVML's cumulative counter, in joules.

    `before` and `after` are in millijoules, `seconds` apart. Returns None if the counter was reset
    in between.

    The counter has 64 bits. One that is kept in 32 bits wraps every 4.3 MJ, which an H100 consumes
    in two hours, so a smaller second reading is taken for a wrap first. If the counter fell for
    another reason, such as a reload of the driver, the result would be far more than MAX_WATTS.

    NVML updates the counter only every 20 to 100 ms (Yang, Adamek and Armour, "Part-time Power
    Measurements", SC 2024, arXiv:2312.02741, measured this for the power readings). So a difference
    lags by up to COUNTER_UPDATE at either end. Over MIN_METERED_SECONDS it is wrong by at most
    COUNTER_UPDATE / MIN_METERED_SECONDS, a tenth; over several segments the lags average out.
    """
    millijoules = after - before
    if millijoules < 0:
        millijoules += 2**32
    joules = millijoules / 1e3
    max_joules = MAX_WATTS * (seconds + COUNTER_UPDATE)
    if not 0 <= joules <= max_joules:
        return None
    return joules


class Sample(NamedTuple):
    """The readings of one moment."""

    at: float  # seconds since the epoch
    readings: dict[str, float]
    throttled: Collection[str] | None  # reasons, keys of THROTTLING; None if unknown
    foreign_processes: Collection[str] | None  # on the GPU, as "pid 123 python"; None if unknown


class _Segment:
    """A segment of training, from `begin_segment` to `end_segment`.

    Only `last_counters` belongs to the sampling thread, the rest to the thread that trains.
    """

    def __init__(
        self, counters: Counters | None, core_use: CoreUse | None, energy: int | None
    ) -> None:
        self.counters = counters  # at the beginning
        self.core_use = core_use  # at the beginning
        self.last_counters = counters  # at the sample before
        self.energy = energy  # at the beginning, in millijoules
        self.began = time.perf_counter()
        self.ended = threading.Event()


class TelemetrySampler:
    """The telemetry of one trial at one rank. As a context manager, it samples in its block.

    Segments that begin within the first `warmup` steps do not count. A reading that raises stops no
    training: the first error of each reading is in the report.
    """

    def __init__(
        self,
        gpu: NvmlGpu | None,
        host: ThisHost,
        *,
        warmup: int = 0,
        interval: float = SAMPLE_INTERVAL,
        errors: dict[str, str] | None = None,
    ) -> None:
        """Prepare to sample every `interval` seconds; `errors` has those that happened already."""
        self.gpu, self.host = gpu, host
        self.warmup, self.interval = warmup, interval
        self.errors = errors or {}  # the first error of each reading
        # A daemon, so that a thread that hangs in a driver does not keep the process alive.
        self.thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)
        self._segments: SimpleQueue[_Segment | None] = SimpleQueue()  # None ends the thread
        self._segment: _Segment | None = None  # the current one, None if it does not count
        self._samples: list[Sample] = []
        self._foreign_by_pid: dict[int, str | None] = {}  # None for processes of this trial
        self._steps_begun = 0  # those of the warm-up, too
        self._step_seconds = math.inf  # of the last segment that counted, once there is one
        # Totals over the segments that count.
        self._seconds = 0.0
        self._steps = 0
        self._counters = Counters()
        self._core_use = CoreUseTotals()
        self._joules = 0.0
        self._metered_steps = 0

    def __enter__(self) -> TelemetrySampler:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._segment:  # training failed within it
            self._segment.ended.set()
        self._segments.put(None)
        self.thread.join(JOIN_TIMEOUT)
        if self.thread.is_alive():
            self.errors["thread"] = f"has not ended within {JOIN_TIMEOUT} s"
            return  # it may still be reading from the GPU and the host
        self.host.close()
        if self.gpu:
            self._try("gpu", self.gpu.close)

    def begin_segment(self, steps: float = math.inf) -> None:
        """Begin a segment of nothing but training, of `steps` steps as far as that is known."""
        if self._steps_begun < self.warmup:
            return
        core_use = self._try("host core use", self.host.core_use)
        counters = self._try("host counters", self.host.counters)
        self._segment = _Segment(counters, core_use, self._energy_before(steps))
        self._segments.put(self._segment)

    def end_segment(self, steps: int) -> None:
        """End the segment, which has trained for `steps` steps."""
        self._steps_begun += steps
        segment, self._segment = self._segment, None
        if segment is None:
            return
        segment.ended.set()
        seconds = time.perf_counter() - segment.began
        self._step_seconds = seconds / max(1, steps)
        if segment.energy is not None and seconds >= MIN_METERED_SECONDS:
            self._meter(segment.energy, self._energy(), seconds, steps)
        counters = self._try("host counters", self.host.counters)
        if segment.counters and counters:
            self._counters += counters - segment.counters
        core_use = self._try("host core use", self.host.core_use)
        if segment.core_use and core_use:
            self._core_use.add(segment.core_use, core_use)
        self._seconds += seconds
        self._steps += steps

    def report(self) -> record.Telemetry:
        """Return all that was measured so far."""
        samples = list(self._samples)
        times = np.array([sample.at for sample in samples], dtype=np.float64)
        throttled: dict[str, float] | None = None  # shares of samples; None if unknown
        reasons = [sample.throttled for sample in samples if sample.throttled is not None]
        if reasons:
            throttled = {}
            for name in THROTTLING:
                throttled[name] = float(np.mean([name in active for active in reasons]))
        foreign: list[str] | None = None  # that any sample saw; None if unknown
        processes = [s.foreign_processes for s in samples if s.foreign_processes is not None]
        if processes:
            foreign = sorted(set().union(*processes))
        return record.Telemetry(
            seconds=self._seconds,
            steps=self._steps,
            sample_times=Series.pack(times),
            readings=_pack_readings(samples),
            shares=self._counters.shares() | self._core_use.shares(),
            joules=self._joules if self._metered_steps else None,
            metered_steps=self._metered_steps,
            throttled=throttled,
            foreign_processes=foreign,
            errors=dict(self.errors),
        )

    def _energy_before(self, steps: float) -> int | None:
        """Return the energy counter before a segment, None if it is likely too short to be metered.

        A reading takes NVML 4 ms on an H200, which is much of a short segment.
        """
        if steps * self._step_seconds < MIN_METERED_SECONDS / 2:
            return None
        return self._energy()

    def _energy(self) -> int | None:
        """Return the GPU's energy counter in millijoules."""
        if self.gpu is None:
            return None
        return self._try("gpu energy", self.gpu.energy_millijoules)

    def _meter(self, before: int, after: int | None, seconds: float, steps: int) -> None:
        """Add the energy of a segment between two readings of the counter."""
        if after is None:
            return
        joules = joules_between(before, after, seconds)
        if joules is None:
            self.errors.setdefault(
                "gpu energy", f"the counter went from {before} to {after} mJ in {seconds:.1f} s"
            )
            return
        self._joules += joules
        self._metered_steps += steps

    def _watch(self) -> None:
        """Take samples during segments, in the thread, which sleeps otherwise.

        The time until the next sample is carried over from segment to segment. So samples are
        evenly spaced in training time, however short the segments are.
        """
        seconds_left = self.interval
        for segment in iter(self._segments.get, None):
            due = time.monotonic() + seconds_left
            while not segment.ended.wait(max(0.0, due - time.monotonic())):
                self._take_sample(segment)
                due = time.monotonic() + self.interval
            seconds_left = max(0.0, due - time.monotonic())

    def _take_sample(self, segment: _Segment) -> None:
        """Read everything once; drop it if the segment ends before that is done."""
        at = time.time()
        readings = dict(self._try("host", self.host.gauges) or {})
        throttled: Collection[str] | None = None
        foreign_processes: Collection[str] | None = None
        if self.gpu:
            readings |= self._try("gpu", self.gpu.gauges) or {}
            throttled = self._try("gpu throttle reasons", self.gpu.throttle_reasons)
            foreign_processes = self._try("gpu processes", self._foreign_processes)
        counters = self._try("host counters", self.host.counters)
        if segment.ended.is_set():
            return
        if segment.last_counters and counters:
            readings |= (counters - segment.last_counters).shares()
        segment.last_counters = counters
        self._samples.append(Sample(at, readings, throttled, foreign_processes))

    def _foreign_processes(self) -> Collection[str] | None:
        """Return the processes on the GPU that are not of this trial, None if that is unknown.

        In a container, NVML may list the process ids of the host's namespace, or none. This process
        computes on the GPU: if its own id is not listed, the others cannot be trusted either.
        """
        pids = self.gpu.compute_pids() if self.gpu else None
        if pids is None or os.getpid() not in pids:
            return None
        foreign: set[str] = set()
        for pid in pids:
            if pid not in self._foreign_by_pid:
                self._foreign_by_pid[pid] = self.host.foreign_process(pid)
            description = self._foreign_by_pid[pid]
            if description is not None:
                foreign.add(description)
        return foreign

    def _try(self, name: str, read: Callable[[], T]) -> T | None:
        """Return a reading; if it raises, note the error under its name and return None."""
        try:
            return read()
        except Exception as error:
            self.errors.setdefault(name, f"{type(error).__name__}: {one_line(error)}")
            return None


def telemetry_for(
    device: torch.device, *, warmup: int, cores: Sequence[int] = ()
) -> TelemetrySampler:
    """Return the telemetry of `device` and this host; without NVML its report has the reason.

    `cores` are those that the trial has for itself, none if it has the whole host.
    """
    gpu: NvmlGpu | None = None
    errors: dict[str, str] = {}
    if device.type == "cuda":
        try:
            gpu = NvmlGpu.of(device)
        except Exception as error:  # a problem of the driver's is no reason not to train
            errors["gpu"] = f"{type(error).__name__}: {one_line(error)}"
    return TelemetrySampler(gpu, ThisHost(cores=cores), warmup=warmup, errors=errors)


def _pack_readings(samples: Sequence[Sample]) -> dict[str, Series]:
    """Return the readings by name, each a series with a value for every sample, NaN where unread."""
    names = {name for sample in samples for name in sample.readings}
    packed: dict[str, Series] = {}
    for name in sorted(names):
        values = [sample.readings.get(name, np.nan) for sample in samples]
        packed[name] = Series.pack(np.array(values, dtype=np.float32))
    return packed
