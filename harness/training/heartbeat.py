"""The sign of life that every rank leaves, so that a rank that hangs can be named.

A trial stands still as soon as one rank does: the others wait for it in a collective, and what they
report says nothing of it. So a thread of each rank writes down from time to time which step the
rank is in and where in the code its main thread is. The thread sleeps all but a fraction of a
millisecond in seconds, and a rank that is stopped, or hangs with the interpreter's lock, falls
silent.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from harness.core.paths import write_atomically
from harness.records.running import Heartbeat, heartbeat_seconds
from harness.training.ranks import Ranks
from harness.training.state import TrainingState

END_SECONDS = 1.0  # that a heartbeat which is being written has to end


@contextmanager
def heartbeats(path: Path, ranks: Ranks, state: TrainingState) -> Iterator[None]:
    """Write a rank's heartbeats to `path` while the block lasts, each in place of the last.

    Ranks that begin at the same time take turns from their second heartbeat on.
    """
    ended = threading.Event()
    period = heartbeat_seconds(ranks.world_size)

    def beat() -> None:
        """Write heartbeats until the block ends; one that can't be written is missed."""
        pause = period * (ranks.rank + 1) / ranks.world_size
        while not ended.is_set():
            with suppress(OSError):
                heartbeat = Heartbeat(
                    rank=ranks.rank,
                    host=ranks.host,
                    pid=os.getpid(),
                    step=state.step,
                    position=_position(threading.main_thread()),
                    at=time.time(),
                )
                if (
                    path.parent.exists()
                ):  # the results may have been moved, which the runner notices
                    write_atomically(path, json.dumps(asdict(heartbeat)), durable=False)
            ended.wait(pause)
            pause = period

    path.parent.mkdir(parents=True, exist_ok=True)
    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(END_SECONDS)


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
