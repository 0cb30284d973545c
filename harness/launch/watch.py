"""Waits until ranks have ended, or have to be ended: the only place that does, and with the only deadline.

Whether they live is for the `Watchdog` to say, how they ended for `assemble`, and whether the trial runs
again for `retries`.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Generator
from pathlib import Path

from harness.core.errors import BadInput, HarnessError
from harness.core.paths import TrialFolder
from harness.core.processes import Process
from harness.launch.launcher import GRACE_SECONDS, Launcher
from harness.launch.watchdog import Watchdog
from harness.records.files import read_rank_result
from harness.records.record import Failure

POLL = 0.1  # seconds between two looks at running ranks
SIGNAL_INTERVAL = 2.0  # seconds between two signals to ranks that are to stop


def watch(
    process: Process,
    launcher: Launcher,
    folder: TrialFolder,
    world_size: int,
    timeout: float,
    *,
    log_start: int = 0,
    stop_reason: Callable[[], str | None] = lambda: None,
    poll_seconds: float = POLL,
    on_poll: Callable[[], None] = lambda: None,
) -> Generator[None, None, Failure | None]:
    """Wait until the ranks have ended, or have to be ended, and return why.

    None if their own results say how they ended. Tells the ranks to stop if there is a reason, and ends
    the wait after `timeout` seconds. It yields between two looks, so that trials in several lanes take
    turns, and calls `on_poll`. The launcher writes its log from byte `log_start` on.
    """
    # Both are on the monotonic clock.
    next_signal: float | None = None  # None before the first
    grace_ends: float | None = None  # of ranks that a launcher lets run once another has failed
    seen_size = log_start  # of the launcher's log, bytes
    watchdog = Watchdog(folder, world_size, timeout)
    while True:
        try:
            process.wait(poll_seconds)
            _refuse_moved_folder(folder)
            return None
        except subprocess.TimeoutExpired:
            _refuse_moved_folder(folder)
            on_poll()
            yield
        now = time.monotonic()
        # The signal is repeated because a launcher that has just been started may miss it.
        if stop_reason() and (next_signal is None or now > next_signal):
            next_signal = now + SIGNAL_INTERVAL
            launcher.interrupt(process)
        verdict = watchdog.look()
        if verdict is not None:
            with folder.launch_log.open("a", encoding="utf-8") as log:
                log.write(f"harness: {verdict.reason}\n")
            return verdict.failure
        if grace_ends is not None and now > grace_ends:
            return None
        # What was printed is searched only when there is more of it, as trials are training.
        log_size = file_size(folder.launch_log)
        if grace_ends is None and log_size > seen_size:
            seen_size = log_size
            output = launcher_output(folder, log_start)
            observed_failures = launcher.observed_failures(folder, output)
            if any(_is_cause(failure, folder) for failure in observed_failures):
                grace_ends = now + GRACE_SECONDS


def to_the_end(watching: Generator[None, None, Failure | None]) -> Failure | None:
    """Return what `watch` returns, where there is nothing else to do meanwhile."""
    while True:
        try:
            next(watching)
        except StopIteration as end:
            failure: Failure | None = end.value
            return failure


def _is_cause(failure: Failure, folder: TrialFolder) -> bool:
    """Return whether a rank failed for more than the loss of its connection to another one.

    The other may have been on a node that died, which Slurm notices later and says so.
    """
    if failure.rank is None:
        return False
    try:
        of_rank = read_rank_result(folder.result_path(failure.rank)).failure
    except BadInput:  # it left nothing
        return True
    return of_rank is None or of_rank.kind != "ConnectionLost"


def _refuse_moved_folder(folder: TrialFolder) -> None:
    """Raise HarnessError if the folder of a running trial is gone: nothing can be saved there.

    A rank may have made it again, to write what it was about to.
    """
    if not folder.assignment_path.exists():
        raise HarnessError(
            f"{folder.path.parent}: moved or removed while {folder.path.name} ran, which was ended;"
            " move it back, or name the results folder that it is in now, and run the same command again"
        )


def file_size(path: Path) -> int:
    """Return the size of a file in bytes, 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def launcher_output(folder: TrialFolder, start: int) -> str:
    """Return what the launcher has written to its log, from byte `start` on.

    It is empty where the folder has just been moved away, which the next look at it finds.
    """
    try:
        with folder.launch_log.open("rb") as log:
            log.seek(start)
            return log.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
