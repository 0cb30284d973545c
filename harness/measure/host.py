"""Reads the host: its CPUs, its load, this process, and which processes belong to the trial."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import add, sub
from pathlib import Path

import psutil

MAX_FREQUENCY_CORES = 4  # cores whose frequency is read at most: each costs reading a file
READ_BYTES = 4096  # of a file in /proc at most, enough for the numbers of five hundred children

# Positions in the first line of /proc/stat, after the word "cpu"; see proc(5). The next two, the
# time of guests, are left out: it is part of user and nice already.
PROC_STAT_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


@dataclass(frozen=True)
class Counters:
    """Accumulated seconds. The difference of two is the time in between."""

    wall: float = 0.0
    total: float = 0.0  # of all cores together
    busy: float = 0.0  # of all cores together
    stolen: float = 0.0  # cores had work, and the hypervisor ran other machines instead
    process: float = 0.0  # CPU time of all threads of this process

    def __sub__(self, other: Counters) -> Counters:
        return Counters(*map(sub, vars(self).values(), vars(other).values()))

    def __add__(self, other: Counters) -> Counters:
        return Counters(*map(add, vars(self).values(), vars(other).values()))

    def shares(self) -> dict[str, float]:
        """Return `cpu_use` and `cpu_steal` as shares of all cores, and `process_cpu` in cores.

        What is unknown is left out. The kernel counts the time of cores in ticks, usually of 10 ms;
        over less than one tick there are no shares of it.
        """
        shares: dict[str, float] = {}
        if self.total > 0:
            shares["cpu_use"] = self.busy / self.total
            shares["cpu_steal"] = self.stolen / self.total
        if self.wall > 0:
            shares["process_cpu"] = self.process / self.wall
        return shares


@dataclass(frozen=True)
class CoreUse:
    """The CPU time of a rank's threads so far, and how long they waited for a core.

    It is read where no training is timed, since it takes two files of each thread.
    """

    wall: float  # seconds
    host: float  # seconds of CPU time of all processes, on the cores that the trial may use
    waited: Mapping[int, float]  # seconds for which a thread was ready and had no core, by thread
    cpu: Mapping[int, float]  # seconds of CPU time of this process and of each child, by process


def load_of_others(proc: Path = Path("/proc")) -> float | None:
    """Return how many threads of other programs want a core, None where the kernel does not say.

    That is the load of the last minute, or how many want one right now if those are fewer: what has
    just ended no longer disturbs.
    """
    try:
        minute, _, _, tasks, *_ = (proc / "loadavg").read_text(encoding="ascii").split()
        now = int(tasks.partition("/")[0]) - 1  # without this one
        return min(float(minute), float(now))
    except (OSError, ValueError):
        return None


class CoreUseTotals:
    """Adds up the differences between pairs of readings."""

    def __init__(self) -> None:
        self.wall = 0.0
        self.host = 0.0
        self.cpu = 0.0
        self.waited: dict[int, float] = {}  # by thread

    def add(self, before: CoreUse, after: CoreUse) -> None:
        """Add the difference of two readings, without threads that have ended in between."""
        self.wall += after.wall - before.wall
        self.host += after.host - before.host
        for process, seconds in after.cpu.items():
            self.cpu += seconds - before.cpu.get(process, 0.0)
        for thread, seconds in after.waited.items():
            waited = seconds - before.waited.get(thread, 0.0)
            self.waited[thread] = self.waited.get(thread, 0.0) + waited

    def shares(self) -> dict[str, float]:
        """Return `host_cpu` and `trial_cpu` in cores, and `cpu_wait` as a share of the time.

        `cpu_wait` is that of the thread that waited longest, since the others wait for it in turn.
        It is left out where the kernel does not say.
        """
        if not self.wall:
            return {}
        shares = {"host_cpu": self.host / self.wall, "trial_cpu": self.cpu / self.wall}
        if self.waited:
            shares["cpu_wait"] = max(self.waited.values()) / self.wall
        return shares


class ThisHost:
    """This machine through Linux's /proc, and cpufreq for the frequency.

    Other sources of the frequency, such as /proc/cpuinfo, often report the nominal one.

    Files in /proc stay open between reads. The thread that reads them has to take the interpreter's
    lock from the training once for each call, so a read should be a single call.
    """

    def __init__(self, proc: Path = Path("/proc"), *, cores: Sequence[int] = ()) -> None:
        """Prepare to read; `cores` are those that the trial is bound to, if it is to any."""
        self.proc = proc
        self.cores = cores
        self.file_descriptors: dict[str, int] = {}  # by path below /proc
        self.process = psutil.Process()
        self.command = self.process.cmdline()
        self.frequencies: list[Path] = []
        for core in sorted(os.sched_getaffinity(0))[:MAX_FREQUENCY_CORES]:
            path = Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq")
            if os.access(path, os.R_OK):
                self.frequencies.append(path)

    def gauges(self) -> dict[str, float]:
        """Return present values, as far as they can be read.

        - `cpu_frequency_hz`: the mean over some cores
        - `load_per_core`: over the last minute
        - `resident_bytes`: memory of this process
        """
        resident_pages = float(self._read("self/statm").split()[1])
        readings = {
            "load_per_core": os.getloadavg()[0] / (os.cpu_count() or 1),
            "resident_bytes": resident_pages * os.sysconf("SC_PAGE_SIZE"),
        }
        if self.frequencies:
            kilohertz = [int(path.read_text(encoding="ascii")) for path in self.frequencies]
            readings["cpu_frequency_hz"] = 1e3 * sum(kilohertz) / len(kilohertz)
        return readings

    def counters(self) -> Counters:
        """Return the counters of /proc/stat and of this process, in seconds."""
        wall, process = time.perf_counter(), time.process_time()
        first_line = self._read("stat").partition(b"\n")[0]
        seconds = _seconds_by_state(first_line.decode("ascii"))
        return Counters(
            wall=wall,
            total=sum(seconds.values()),
            busy=_busy(seconds),
            stolen=seconds["steal"],
            process=process,
        )

    def core_use(self) -> CoreUse:
        """Read the CPU use of this process's threads and children from /proc."""
        waited: dict[int, float] = {}
        cpu = {os.getpid(): time.process_time()}
        threads = os.listdir(self.proc / "self/task")  # noqa: PTH208 - numbers, not paths
        running = set(threads)
        for name in list(self.file_descriptors):
            _, is_thread, rest = name.partition("self/task/")
            if is_thread and rest.partition("/")[0] not in running:  # its thread has ended
                os.close(self.file_descriptors.pop(name))
        for thread in threads:
            with suppress(OSError):  # it has just ended, or the kernel does not count
                # Nanoseconds on a core, nanoseconds in a queue for one, times on a core.
                schedstat = self._read(f"self/task/{thread}/schedstat")
                waited[int(thread)] = int(schedstat.split()[1]) / 1e9
            children = b""
            with suppress(OSError):
                children = self._read(f"self/task/{thread}/children")
            for child in children.split():
                with suppress(OSError):  # it has just ended, and its siblings have not
                    cpu[int(child)] = self._cpu_seconds(int(child))
        counters = self.counters()
        # Work on other cores, such as a trial in another lane, does not slow this one.
        host = self._busy_seconds_of_cores() if self.cores else counters.busy
        return CoreUse(wall=counters.wall, host=host, waited=waited, cpu=cpu)

    def _busy_seconds_of_cores(self) -> float:
        """Return the seconds for which the trial's own cores were busy, together."""
        names = {f"cpu{core}" for core in self.cores}
        busy = 0.0
        for line in (self.proc / "stat").read_text(encoding="ascii").splitlines():
            if line.partition(" ")[0] in names:
                busy += _busy(_seconds_by_state(line))
        return busy

    def _cpu_seconds(self, pid: int) -> float:
        """Return the CPU time of a process."""
        stat = (self.proc / str(pid) / "stat").read_bytes()
        # After `PID (NAME)`, where the name may hold spaces: the 12th and 13th are user and system.
        user, system = stat.rpartition(b")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _read(self, name: str) -> bytes:
        """Return the first bytes of a file below /proc."""
        if name not in self.file_descriptors:
            path = self.proc / name
            self.file_descriptors[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # A read at offset 0 has the kernel compute the content of a /proc file again.
            return os.pread(self.file_descriptors[name], READ_BYTES, 0)
        except OSError:  # of a thread that has ended, whose number another one may get
            os.close(self.file_descriptors.pop(name))
            raise

    def close(self) -> None:
        """Close the files of /proc."""
        while self.file_descriptors:
            os.close(self.file_descriptors.popitem()[1])

    def foreign_process(self, pid: int) -> str | None:
        """Return "pid 123 python" unless the process or an ancestor has this process's command
        line.

        All ranks of a trial have the same command line, which names the trial's folder, and the
        processes that a rank starts have it as their parent.
        """
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                lineage = (process, *process.parents())
                if any(relative.cmdline() == self.command for relative in lineage):
                    return None
                return f"pid {pid} {process.name()}"
        except psutil.Error:
            return f"pid {pid}"  # it has ended, or it is hidden from this user


def _seconds_by_state(line: str) -> dict[str, float]:
    """Return the seconds that cores have spent in each state, from a line of /proc/stat."""
    ticks = map(int, line.split()[1 : 1 + len(PROC_STAT_FIELDS)])
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    return {
        state: count / ticks_per_second
        for state, count in zip(PROC_STAT_FIELDS, ticks, strict=False)
    }


def _busy(seconds: Mapping[str, float]) -> float:
    """Return the seconds in which cores ran something of this host."""
    return sum(seconds.values()) - seconds["idle"] - seconds["iowait"] - seconds["steal"]
