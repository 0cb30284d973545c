"""The host: its CPUs, its load, this process on it, and who else is."""

from __future__ import annotations

import os
import time
from dataclasses import astuple, dataclass
from operator import add, sub
from pathlib import Path
from typing import Protocol

import psutil

CORES_ASKED = 4  # for their frequency, as each takes a file to read


@dataclass(frozen=True)
class Counters:
    """Seconds that add up. Differences of them are what was spent in between; NaN where unread."""

    wall: float = 0.0
    total: float = 0.0  # of all cores together
    busy: float = 0.0
    stolen: float = 0.0  # cores were ready to work, and the hypervisor let others run
    process: float = 0.0  # CPU seconds of all threads of this process

    def __sub__(self, other: Counters) -> Counters:
        return Counters(*map(sub, astuple(self), astuple(other)))

    def __add__(self, other: Counters) -> Counters:
        return Counters(*map(add, astuple(self), astuple(other)))

    def shares(self) -> dict[str, float]:
        """`cpu_use` and `cpu_steal` of all cores' time, and `process_cpu` in cores; without what is unknown.

        The kernel counts the cores' time in ticks, of 10 ms as a rule: in less than one, no share can be told.
        """
        found = {}
        if self.total > 0:
            found = {"cpu_use": self.busy / self.total, "cpu_steal": self.stolen / self.total}
        if self.wall > 0:
            found["process_cpu"] = self.process / self.wall
        return {name: share for name, share in found.items() if share == share}


class Host(Protocol):
    def gauges(self) -> dict[str, float]:
        """Of `cpu_frequency_hz`, `load_per_core` (over the last minute) and `resident_bytes` (of this process), those
        that can be read."""
        ...

    def counters(self) -> Counters: ...

    def foreign_process(self, pid: int) -> str | None:
        """A process that is not of this trial, as "pid 123 python"; None for one that is."""
        ...

    def close(self) -> None:
        """Nothing is read afterwards."""
        ...


class ThisHost:
    """Linux's /proc, and cpufreq for the frequency: what else calls itself a frequency is often the nominal one.

    Files are kept open, as the thread that reads them takes the interpreter from the training once for each call.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.proc = proc
        self.open: dict[str, int] = {}
        self.process = psutil.Process()
        self.command = self.process.cmdline()
        cores = sorted(os.sched_getaffinity(0))[:CORES_ASKED]
        paths = [
            Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq") for core in cores
        ]
        self.frequencies = [path for path in paths if os.access(path, os.R_OK)]

    def gauges(self) -> dict[str, float]:
        found = {
            "load_per_core": os.getloadavg()[0] / (os.cpu_count() or 1),
            "resident_bytes": float(self._read("self/statm").split()[1])
            * os.sysconf("SC_PAGE_SIZE"),
        }
        if self.frequencies:
            kilohertz = [int(path.read_text(encoding="ascii")) for path in self.frequencies]
            found["cpu_frequency_hz"] = 1e3 * sum(kilohertz) / len(kilohertz)
        return found

    def counters(self) -> Counters:
        """proc(5): user nice system idle iowait irq softirq steal, in ticks; then guests', which is in user already."""
        wall, process = time.perf_counter(), time.process_time()
        ticks = [int(word) for word in self._read("stat").partition(b"\n")[0].split()[1:9]]
        idle, stolen, hertz = ticks[3] + ticks[4], ticks[7], os.sysconf("SC_CLK_TCK")
        total = sum(ticks)
        return Counters(
            wall, total / hertz, (total - idle - stolen) / hertz, stolen / hertz, process
        )

    def _read(self, name: str) -> bytes:
        """The beginning, which is as much as is needed."""
        if name not in self.open:
            self.open[name] = os.open(self.proc / name, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self.open[name], 512, 0)

    def close(self) -> None:
        while self.open:
            os.close(self.open.popitem()[1])

    def foreign_process(self, pid: int) -> str | None:
        """All ranks of a trial have one command line, which names its folder; what they start hangs below them."""
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                mine = any(one.cmdline() == self.command for one in (process, *process.parents()))
                return None if mine else f"pid {pid} {process.name()}"
        except psutil.Error:
            return f"pid {pid}"  # it is gone, or hidden from us
