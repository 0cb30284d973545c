"""Reads from the kernel for how long other programs kept a process from running.

A program beside a gate takes a core from whichever arm happens to train. The kernel counts for how
long a thread that could run waited for a core, so that this time can be taken off a turn: what is
left is what the arm needs itself. Linux only; elsewhere nothing is taken off.
"""

from __future__ import annotations

import time
from pathlib import Path

# <linux/posix-timers.h>: the clock of the CPU time of a process, all of its threads together, has
# the number ~PID << 3 | CPUCLOCK_SCHED.
CPUCLOCK_SCHED = 2
NANOSECOND = 1e-9


class WaitClock:
    """Counts the seconds for which other programs kept a process's main thread from a core."""

    def __init__(self, process_id: int) -> None:
        self._path = Path(f"/proc/{process_id}/schedstat")
        self._cpu_clock = (~process_id << 3) | CPUCLOCK_SCHED

    def read(self) -> float:
        """Return a count of seconds, of which only differences mean something.

        The main thread may have waited for other threads of its own process as well, for no longer
        than these ran: so their CPU time is subtracted, and code can't pass its own work off as
        somebody else's. 0 for a process that has ended, and where the kernel does not count.
        """
        try:
            # Nanoseconds on a core and waiting for one, of the main thread (sched-stats.rst).
            ran, waited, _ = self._path.read_text(encoding="ascii").split()
            process_ran = time.clock_gettime_ns(self._cpu_clock)
        except (OSError, ValueError):
            return 0.0
        other_threads_ran = process_ran - int(ran)
        return (int(waited) - other_threads_ran) * NANOSECOND
