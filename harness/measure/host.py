"""Reads the host through psutil: its load, and who has its cores."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

FREQUENCY = (
    "/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"  # kHz, as the kernel measures it
)


def load_of_others() -> float | None:
    """Return how many threads of other programs want a core, None where the kernel does not say.

    That is the load of the last minute, or how many want one right now if those are fewer: what has
    just ended no longer disturbs.
    """
    try:
        minute, _, _, tasks, *_ = Path("/proc/loadavg").read_text(encoding="ascii").split()
        now = int(tasks.partition("/")[0]) - 1  # without this one
        return min(float(minute), float(now))
    except (OSError, ValueError):
        return None


def host_gauges() -> dict[str, float]:
    """Return present values, as far as they can be read.

    - `load_per_core`: over the last minute
    - `resident_bytes`: memory of this process
    - `cpu_frequency_hz`: of the first core that this process may use
    """
    readings = {
        "load_per_core": os.getloadavg()[0] / (os.cpu_count() or 1),
        "resident_bytes": float(psutil.Process().memory_info().rss),
    }
    with suppress(OSError):
        path = Path(FREQUENCY.format(core=min(os.sched_getaffinity(0))))
        readings["cpu_frequency_hz"] = 1e3 * int(path.read_text(encoding="ascii"))
    return readings


def core_seconds(cores: Sequence[int] = ()) -> dict[str, float]:
    """Return counters in seconds, whose differences `core_shares` takes.

    `cores` are those that the trial is bound to, if it is to any: work on other ones, such as a trial
    in another lane, does not slow this one.
    """
    times, of_core = psutil.cpu_times(), psutil.cpu_times(percpu=True)
    busy = _busy(times)
    seconds = {
        "wall": time.perf_counter(),
        "total": busy + times.idle + times.iowait + times.steal,
        "busy": busy,
        "stolen": times.steal,  # cores had work, and the hypervisor ran other machines instead
        "host": sum(_busy(of_core[core]) for core in cores) if cores else busy,
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
