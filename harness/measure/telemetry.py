"""Telemetry: what the GPU and the host were doing while a rank trained, watched from a thread beside the training.

Only what happens in a stretch of training counts. The training loop says where one begins and ends; the thread
samples every SAMPLE_INTERVAL seconds of training and drops a sample during which a stretch has ended. What adds up (energy, CPU
time) is read by the training loop itself at both ends, outside its timed region.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from queue import SimpleQueue
from types import TracebackType
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from harness.core.errors import one_line
from harness.measure.gpu import THROTTLING, Gpu, NvmlGpu
from harness.measure.host import Counters, Host, ThisHost
from harness.records import record
from harness.records.series import Series

T = TypeVar("T")

SAMPLE_INTERVAL = 1.0  # seconds of training from sample to sample
MIN_METERED_SECONDS = (
    1.0  # seconds that a stretch must last for its energy to count; see `joules_between`
)
UPDATE = 0.1  # seconds in which NVML's energy counter moves on at the latest
MOST_WATTS = 5000.0  # above what any one device draws; more means that the counter was set back
JOIN_TIMEOUT = 5.0  # seconds that the thread is given to end


def joules_between(before: int, after: int, seconds: float) -> float | None:
    """From two readings of a counter in millijoules; None where it was set back in between.

    NVML gives 64 bits; a counter that is kept in 32 wraps every 4.3 MJ, which is two hours of an H100. One that fell
    for another reason, such as a driver's reload, would seem to have spent far more than MOST_WATTS.

    NVML moves the counter on every 20 to 100 ms (Yang, Adamek and Armour, "Part-time power measurements", SC 2024,
    arXiv 2312.02741, measured the power readings' updates). So a difference lags by up to UPDATE at either end, and
    over MIN_METERED_SECONDS seconds it is wrong by UPDATE / MIN_METERED_SECONDS, a tenth, at worst; over stretches the lags average out.
    """
    spent = after - before
    if spent < 0:
        spent += 2**32
    joules = spent / 1e3
    return joules if 0 <= joules <= MOST_WATTS * (seconds + UPDATE) else None


class Sample(NamedTuple):
    """What the thread saw at one time."""

    at: float  # seconds since the epoch
    readings: dict[str, float]
    throttled: Collection[str] | None
    foreign: Collection[str] | None


class _Stretch:
    """From `begin` to `end`. Its parts are read by the training's thread, but for `last`."""

    def __init__(self, counters: Counters | None, energy: int | None) -> None:
        self.counters = self.last = counters
        self.energy = energy
        self.began = time.perf_counter()
        self.over = threading.Event()


class Telemetry:
    """Of one trial at one rank; as a context manager, it samples for as long as the block lasts.

    Stretches that begin within the first `warmup` steps do not count. What raises is noted in the account by the name
    of what was read, once each, and training goes on.
    """

    def __init__(
        self,
        gpu: Gpu | None,
        host: Host,
        *,
        warmup: int = 0,
        every: float = SAMPLE_INTERVAL,
        trouble: dict[str, str] | None = None,
    ) -> None:
        self.gpu, self.host, self.warmup, self.every = gpu, host, warmup, every
        self.trouble = trouble or {}
        self.thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)
        self._stretches: SimpleQueue[_Stretch | None] = (
            SimpleQueue()
        )  # for the thread; None ends it
        self._stretch: _Stretch | None = None
        self._samples: list[Sample] = []
        self._strangers: dict[int, str | None] = {}  # by pid, None for processes of this trial
        self._begun = 0  # steps, those in warm-up too
        self._seconds, self._steps, self._spent = 0.0, 0, Counters()
        self._joules, self._metered_steps = 0.0, 0

    def __enter__(self) -> Telemetry:
        self.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._stretch:
            self._stretch.over.set()
        self._stretches.put(None)
        self.thread.join(JOIN_TIMEOUT)
        if self.thread.is_alive():
            self.trouble["thread"] = f"has not ended within {JOIN_TIMEOUT} s"
            return  # it may be reading still
        self.host.close()
        if self.gpu:
            self._try("gpu", self.gpu.close)

    def begin_segment(self) -> None:
        """A stretch of nothing but training begins."""
        if self._begun >= self.warmup:
            self._stretch = _Stretch(self._try("host counters", self.host.counters), self._energy())
            self._stretches.put(self._stretch)

    def end_segment(self, steps: int) -> None:
        """It has ended after so many steps."""
        self._begun += steps
        stretch, self._stretch = self._stretch, None
        if stretch is None:
            return
        stretch.over.set()
        seconds = time.perf_counter() - stretch.began
        if seconds >= MIN_METERED_SECONDS:
            self._meter(stretch.energy, self._energy(), seconds, steps)
        counters = self._try("host counters", self.host.counters)
        if stretch.counters and counters:
            self._spent += counters - stretch.counters
        self._seconds += seconds
        self._steps += steps

    def report(self) -> record.Telemetry:
        """All that was seen; after the block."""
        samples = list(self._samples)
        names = sorted({name for sample in samples for name in sample.readings})
        columns = {
            name: [sample.readings.get(name, np.nan) for sample in samples] for name in names
        }
        reasons = [sample.throttled for sample in samples if sample.throttled is not None]
        told = [sample.foreign for sample in samples if sample.foreign is not None]
        return record.Telemetry(
            seconds=self._seconds,
            steps=self._steps,
            sample_times=Series.pack(np.array([sample.at for sample in samples], dtype=np.float64)),
            readings={
                name: Series.pack(np.array(column, dtype=np.float32))
                for name, column in columns.items()
            },
            shares=self._spent.shares(),
            joules=self._joules if self._metered_steps else None,
            metered_steps=self._metered_steps,
            throttled={
                name: float(np.mean([name in held for held in reasons])) for name in THROTTLING
            }
            if reasons
            else None,
            foreign_processes=sorted(set().union(*told)) if told else None,
            errors=dict(self.trouble),
        )

    def _energy(self) -> int | None:
        return self._try("gpu energy", self.gpu.energy_millijoules) if self.gpu else None

    def _meter(self, before: int | None, after: int | None, seconds: float, steps: int) -> None:
        if before is None or after is None:
            return
        joules = joules_between(before, after, seconds)
        if joules is None:
            self.trouble.setdefault(
                "gpu energy", f"the counter went from {before} to {after} mJ in {seconds:.1f} s"
            )
            return
        self._joules += joules
        self._metered_steps += steps

    def _watch(self) -> None:
        """The thread: asleep between stretches, and in them until a sample is due."""
        left = self.every
        for stretch in iter(self._stretches.get, None):
            due = time.monotonic() + left
            while not stretch.over.wait(max(0.0, due - time.monotonic())):
                self._sample(stretch)
                due = time.monotonic() + self.every
            left = max(0.0, due - time.monotonic())

    def _sample(self, stretch: _Stretch) -> None:
        at = time.time()
        readings = dict(self._try("host", self.host.gauges) or {})
        throttled = foreign = None
        if self.gpu:
            readings |= self._try("gpu", self.gpu.gauges) or {}
            throttled = self._try("gpu throttle reasons", self.gpu.throttle_reasons)
            foreign = self._try("gpu processes", self._foreign)
        counters = self._try("host counters", self.host.counters)
        if stretch.over.is_set():
            return
        if stretch.last and counters:
            readings |= (counters - stretch.last).shares()
        stretch.last = counters
        self._samples.append(Sample(at, readings, throttled, foreign))

    def _foreign(self) -> Collection[str] | None:
        """The processes on the GPU that are not of this trial.

        NVML may number processes as the host does while we are in a container, or list none. Whether its pids are ours
        is seen from our own, as this process computes on the GPU; where that is not listed, nothing is known.
        """
        pids = self.gpu.compute_pids() if self.gpu else None
        if pids is None or os.getpid() not in pids:
            return None
        for pid in pids:
            if pid not in self._strangers:
                self._strangers[pid] = self.host.foreign_process(pid)
        return {stranger for pid in pids if (stranger := self._strangers[pid])}

    def _try(self, name: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except Exception as error:
            self.trouble.setdefault(name, f"{type(error).__name__}: {one_line(error)}")
            return None


def telemetry_for(device: torch.device, *, warmup: int) -> Telemetry:
    """Of `device` and this host. Where NVML can't be had, the account says why."""
    gpu: Gpu | None = None
    trouble = {}
    if device.type == "cuda":
        try:
            gpu = NvmlGpu.of(device)
        except Exception as error:  # whatever the driver has, it is no reason not to train
            trouble["gpu"] = f"{type(error).__name__}: {one_line(error)}"
    return Telemetry(gpu, ThisHost(), warmup=warmup, trouble=trouble)
