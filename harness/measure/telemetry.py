"""Watches the GPU and the host from a thread while a rank trains, a sample a second.

Only what happens during segments of training counts. The training loop says where a segment begins
and ends, and reads the CPU time there, outside its timed region. A sample during which a segment ends
is dropped.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from harness.core.errors import one_line
from harness.measure.host import core_seconds, core_shares, host_gauges
from harness.records import record
from harness.records.record import Numbers

if TYPE_CHECKING:
    from harness.measure.gpu import NvmlGpu

T = TypeVar("T")

SAMPLE_INTERVAL = 1.0  # seconds
JOIN_TIMEOUT = 5.0  # seconds that the thread has to end
MIN_METERED = 5.0  # seconds of segments below which the lag of an energy counter matters


class TelemetrySampler:
    """The telemetry of one trial at one rank. As a context manager, it samples in its block.

    Segments that begin within the first `warmup` steps do not count. A reading that raises stops no
    training: it is absent, and the rank's log has the first error of its kind.
    """

    def __init__(
        self, *, warmup: int, cores: Sequence[int] = (), interval: float = SAMPLE_INTERVAL
    ) -> None:
        """Prepare to sample every `interval` seconds; `cores` are the trial's, none for all."""
        self.gpu: NvmlGpu | None = None
        self.cores, self.warmup, self.interval = cores, warmup, interval
        # A daemon, so that a thread that hangs in a driver does not keep the process alive.
        self.thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)
        self._ended = threading.Event()
        self._failed: set[str] = set()  # readings that have raised
        # The counters at the beginning of the segment, None outside those that count.
        self._segment: dict[str, float] | None = None
        self._steps_begun = 0  # those of the warm-up, too
        # Of the segments that count: steps, and what was added to the counters.
        self._steps = 0
        self._spent: Counter[str] = Counter()
        # Of the samples: readings, throttle reasons where they are known, and processes of others.
        self._readings: list[dict[str, float]] = []
        self._throttled: list[dict[str, bool]] = []
        self._foreign_processes: set[str] | None = None  # None if unknown

    def __enter__(self) -> TelemetrySampler:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.thread.join(JOIN_TIMEOUT)
        if self.gpu is not None and not self.thread.is_alive():
            self.attempt("gpu", self.gpu.close)

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

    def _read_counters(self) -> dict[str, float]:
        """Return the counters of the host and of the GPU's energy, as far as they can be read."""
        counters = self.attempt("host counters", lambda: core_seconds(self.cores)) or {}
        joules = None if self.gpu is None else self.attempt("gpu energy", self.gpu.joules)
        return counters if joules is None else {**counters, "joules": joules}

    def report(self) -> record.Telemetry:
        """Return all that was measured so far."""
        samples, throttled = list(self._readings), list(self._throttled)
        names = {name for sample in samples for name in sample}
        readings: dict[str, Numbers] = {}  # NaN where a sample could not be read
        for name in sorted(names):
            values = [sample.get(name, np.nan) for sample in samples]
            readings[name] = np.array(values, dtype=np.float32)
        shares: dict[str, float] = {}  # of samples
        for reason in throttled[0] if throttled else ():
            shares[reason] = float(np.mean([sample[reason] for sample in throttled]))
        foreign, joules = self._foreign_processes, self._spent.get("joules")
        # NVML updates its counter only every 20 to 100 ms (Yang, Adamek and Armour, SC 2024,
        # arXiv:2312.02741), and it may be reset.
        is_metered = joules is not None and joules >= 0 and self._spent["wall"] >= MIN_METERED
        if not is_metered:
            joules = None
        return record.Telemetry(
            seconds=self._spent["wall"],
            steps=self._steps,
            readings=readings,
            shares=core_shares(self._spent),
            joules=joules,
            throttled=shares if throttled else None,
            foreign_processes=None if foreign is None else sorted(foreign),
        )

    def attempt(self, name: str, read: Callable[[], T]) -> T | None:
        """Return a reading; if it raises, print the first error of its name and return None."""
        try:
            return read()
        except Exception as error:
            if name not in self._failed:
                self._failed.add(name)
                print(f"telemetry: {name}: {type(error).__name__}: {one_line(error)}", flush=True)
            return None

    def _watch(self) -> None:
        """Take samples during segments, in the thread; drop one if its segment ends before it is done."""
        while not self._ended.wait(self.interval):
            segment, gpu = self._segment, self.gpu
            if segment is None:
                continue
            readings = self.attempt("host", host_gauges) or {}
            throttled = foreign = None
            if gpu is not None:
                readings |= self.attempt("gpu", gpu.gauges) or {}
                throttled = self.attempt("gpu throttle reasons", gpu.throttle_reasons)
                foreign = self.attempt("gpu processes", gpu.foreign_processes)
            if self._segment is segment:
                self._readings.append(readings)
                self._throttled += [] if throttled is None else [throttled]
                if foreign is not None:
                    self._foreign_processes = foreign | (self._foreign_processes or set())


def telemetry_for(
    device: torch.device, *, warmup: int, cores: Sequence[int] = ()
) -> TelemetrySampler:
    """Return the telemetry of `device` and this host; without NVML it has no readings of the GPU.

    `cores` are those that the trial has for itself, none if it has the whole host.
    """
    telemetry = TelemetrySampler(warmup=warmup, cores=cores)
    if device.type == "cuda":
        from harness.measure.gpu import NvmlGpu

        telemetry.gpu = telemetry.attempt("gpu", lambda: NvmlGpu(device))
    return telemetry
