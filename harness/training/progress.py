"""What a rank and those who watch it tell each other: progress, signs of life, and the signal to stop.

The runner and `harness status` read the files. They are replaced by a rename, so that nobody reads
half of one, but not flushed to the disk: a loss of power may take them.

A trial stands still as soon as one rank does: the others wait for it in a collective, and what they
report says nothing of it. So a thread of each rank writes down every few seconds which step the rank
is in and where in the code its main thread is. A rank that is stopped, or hangs with the
interpreter's lock, falls silent.

The signal asks ranks to stop and leave a checkpoint. It is blocked, so that it never strikes in the
middle of a step or of a collective, where the other ranks would wait for ever. Ranks look between
segments of training whether it is pending at any of them. This module loads neither torch nor NumPy.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from harness.core.errors import StorageError
from harness.core.paths import TrialFolder, write_atomically
from harness.core.processes import die_with_parent
from harness.records.assignment import Heartbeat, heartbeat_seconds

if TYPE_CHECKING:
    from harness.training.ranks import Ranks
    from harness.training.state import TrainingState

# Not SIGTERM, with which launchers end the ranks of a trial that has failed.
SIGNAL = signal.SIGUSR2
END_SECONDS = 1.0  # that a heartbeat which is being written has to end
# Without a step, after which a rank writes its stacks: so long, and so many times as long as ever before. It is
# less than after which the runner says that the trial hangs.
STACK_SECONDS = 45.0
STACK_STEPS = 5
STDERR = 2  # the rank's log, also where a script has put something else in place of sys.stderr


def before_torch() -> None:
    """Begin a program that loads torch: it ends with its starter, and the signal stays pending.

    It does for all that this thread starts: threads, loader workers and compilers. NumPy starts threads,
    and where one does not block the signal, it would be delivered there and end the process.
    """
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})


def stop_is_requested() -> bool:
    """Return whether the signal has come to this process; it stays pending, so it is seen again."""
    return SIGNAL in signal.sigpending()


@dataclass
class ProgressFile:
    """The trial's progress file, which rank 0 writes."""

    folder: TrialFolder
    rank: int
    facts: dict[str, Any]  # that each report repeats, with what the reports before it have added

    def report(self, phase: str, step: int, **facts: Any) -> None:
        """Report that `phase` begins or continues after `step` optimizer steps, and what is new of it."""
        self.facts |= {"phase": phase, "step": step, "at": time.time(), **facts}
        if self.rank == 0:
            _replace(self.folder.progress_path, self.facts)


@contextmanager
def heartbeats(folder: TrialFolder, ranks: Ranks, state: TrainingState) -> Iterator[None]:
    """Write a rank's heartbeats while the block lasts, each in place of the last.

    A rank that has made no step for long writes its stacks to its log, once: the trial may hang. The timer
    of faulthandler needs no lock of Python.
    """
    path = folder.heartbeat_path(ranks.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    created = psutil.Process().create_time()
    ended = threading.Event()
    period = heartbeat_seconds(ranks.world_size)

    def beat() -> None:
        """Write heartbeats until the block ends."""
        step = -1  # the last one that was seen
        seen_at = time.monotonic()
        longest = 0.0  # seconds between two
        while not ended.is_set():
            if state.step != step or not state.in_step:
                step = state.step
                now = time.monotonic()
                longest = max(longest, now - seen_at)
                seen_at = now
                timeout = max(STACK_SECONDS, STACK_STEPS * longest)
                faulthandler.dump_traceback_later(timeout, file=STDERR)
            heartbeat = Heartbeat(
                rank=ranks.rank,
                host=ranks.host,
                pid=os.getpid(),
                created=created,
                step=state.step,
                in_step=state.in_step,
                position=_position(threading.main_thread()),
                at=time.time(),
            )
            _replace(path, asdict(heartbeat))
            ended.wait(period)

    # A process that is forked while the timer runs would wait for it at its end, for ever.
    os.register_at_fork(before=faulthandler.cancel_dump_traceback_later)
    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(END_SECONDS)
        faulthandler.cancel_dump_traceback_later()


def _replace(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file in place of the last one; one that can't be written is missed.

    A full disk keeps no trial from training. The results may have been moved, which the runner notices:
    they are not begun again here.
    """
    with suppress(OSError, StorageError):
        if path.parent.exists():
            write_atomically(path, json.dumps(content), durable=False)


def _position(thread: threading.Thread) -> str:
    """Return where a thread is, as in `workload.loss:31`: module, function and line.

    That is the innermost call of anything but the standard library, which says what is waited for.
    """
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        module = frame.f_globals.get("__name__", "?")
        if module.partition(".")[0] not in sys.stdlib_module_names:
            return f"{module}.{frame.f_code.co_name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"
