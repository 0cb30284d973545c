"""Watches the GPU and the host from a thread while a rank trains, a sample a second.

Only what happens during segments of training counts. The training loop says where a segment begins
and ends, and reads the CPU time there, outside its timed region. A sample during which a segment ends
is dropped.
"""

from __future__ import annotations

import threading
import time
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
    training: the first error of each reading is in the report.
    """

    def __init__(
        self, *, warmup: int, cores: Sequence[int] = (), interval: float = SAMPLE_INTERVAL
    ) -> None:
        """Prepare to sample every `interval` seconds; `cores` are the trial's, none for all."""
        self.gpu: NvmlGpu | None = None
        self.cores, self.warmup, self.interval = cores, warmup, interval
        self.errors: dict[str, str] = {}  # the first error of each reading
        # A daemon, so that a thread that hangs in a driver does not keep the process alive.
        self.thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)
        self._ended = threading.Event()
        # The counters at the beginning of the segment, None outside those that count.
        self._segment: dict[str, float] | None = None
        self._steps_begun = 0  # those of the warm-up, too
        # Of the segments that count: steps, and what was added to the counters.
        self._steps = 0
        self._spent: Counter[str] = Counter()
        # Of the samples: moments, in seconds since the epoch, and readings.
        self._times: list[float] = []
        self._readings: list[dict[str, float]] = []
        self._throttled: list[set[str]] = []  # of the samples of which it is known
        self._foreign_processes: set[str] | None = None  # that any sample saw; None if unknown

    def __enter__(self) -> TelemetrySampler:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.thread.join(JOIN_TIMEOUT)
        if self.thread.is_alive():
            self.errors["thread"] = f"has not ended within {JOIN_TIMEOUT} s"
        elif self.gpu is not None:
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
        if self.gpu is not None:
            joules = self.attempt("gpu energy", self.gpu.joules)
            if joules is not None:
                counters["joules"] = joules
        return counters

    def report(self) -> record.Telemetry:
        """Return all that was measured so far."""
        count = len(self._times)
        names = {name for sample in self._readings[:count] for name in sample}
        readings: dict[str, Numbers] = {}  # NaN where a sample could not be read
        for name in sorted(names):
            values = [sample.get(name, np.nan) for sample in self._readings[:count]]
            readings[name] = np.array(values, dtype=np.float32)
        throttled: dict[str, float] | None = None  # shares of samples
        if self._throttled:
            from harness.measure.gpu import THROTTLING

            throttled = {}
            for name in THROTTLING:
                throttled[name] = float(np.mean([name in reasons for reasons in self._throttled]))
        foreign = None if self._foreign_processes is None else sorted(self._foreign_processes)
        seconds, joules = self._spent["wall"], self._spent.get("joules")
        # NVML updates its counter only every 20 to 100 ms (Yang, Adamek and Armour, SC 2024,
        # arXiv:2312.02741), and it may be reset.
        is_metered = joules is not None and joules >= 0 and seconds >= MIN_METERED
        return record.Telemetry(
            seconds=seconds,
            steps=self._steps,
            sample_times=np.array(self._times[:count], dtype=np.float64),
            readings=readings,
            shares=core_shares(self._spent),
            joules=joules if is_metered else None,
            throttled=throttled,
            foreign_processes=foreign,
            errors=dict(self.errors),
        )

    def attempt(self, name: str, read: Callable[[], T]) -> T | None:
        """Return a reading; if it raises, note the error under its name and return None."""
        try:
            return read()
        except Exception as error:
            self.errors.setdefault(name, f"{type(error).__name__}: {one_line(error)}")
            return None

    def _watch(self) -> None:
        """Take samples during segments, in the thread."""
        while not self._ended.wait(self.interval):
            segment = self._segment
            if segment is not None:
                self._take_sample(segment, self.gpu)

    def _take_sample(self, segment: object, gpu: NvmlGpu | None) -> None:
        """Read everything once; drop it if the segment ends before that is done."""
        at = time.time()
        readings = self.attempt("host", host_gauges) or {}
        throttled = foreign = None
        if gpu is not None:
            readings |= self.attempt("gpu", gpu.gauges) or {}
            throttled = self.attempt("gpu throttle reasons", gpu.throttle_reasons)
            foreign = self.attempt("gpu processes", gpu.foreign_processes)
        if self._segment is not segment:
            return
        self._readings.append(readings)
        self._times.append(at)
        if throttled is not None:
            self._throttled.append(throttled)
        if foreign is not None:
            self._foreign_processes = (self._foreign_processes or set()) | foreign


def telemetry_for(
    device: torch.device, *, warmup: int, cores: Sequence[int] = ()
) -> TelemetrySampler:
    """Return the telemetry of `device` and this host; without NVML its report has the reason.

    `cores` are those that the trial has for itself, none if it has the whole host.
    """
    telemetry = TelemetrySampler(warmup=warmup, cores=cores)
    if device.type == "cuda":
        from harness.measure.gpu import NvmlGpu

        telemetry.gpu = telemetry.attempt("gpu", lambda: NvmlGpu(device))
    return telemetry
