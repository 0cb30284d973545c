"""Runs the ranks of a trial, or of another task of the worker, and says how they ended."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from harness.core.errors import BadInput, HarnessError, Interrupted
from harness.core.files import last_log_line
from harness.core.paths import TrialFolder
from harness.core.text import ranges
from harness.launch.launcher import Launcher, RankProgram, rank_failure
from harness.launch.watch import Watchdog
from harness.measure.stacks import last_stack
from harness.records.files import read_rank_result
from harness.records.record import PEER_FAILURES, Failure, RankResult

POLL = 0.1  # seconds between two looks at whether the launcher has ended
SIGNAL_INTERVAL = 2.0  # seconds between two signals to ranks that are to stop
# In which the other ranks may report their own errors once one has failed. They need a moment on a busy
# machine: what they leave says in which collective they were.
GRACE_SECONDS = 3.0
INTERRUPTED = Interrupted.__name__


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How ranks ended, and what they left."""

    started: float  # seconds since the epoch
    ended: float = field(default_factory=time.time)
    failure: Failure | None  # that caused all others; None: there is none
    ranks: Sequence[RankResult]  # of those that left a readable result, by rank


def run_ranks(
    launcher: Launcher,
    program: RankProgram,
    timeout: float,
    *,
    stop_reason: Callable[[], str | None] = lambda: None,
    poll_seconds: float = POLL,
    on_poll: Callable[[], None] = lambda: None,
) -> Generator[None, None, Ended]:
    """Start ranks, and wait until all have ended, or have to be ended.

    That is after `timeout` seconds, when they hang, and soon after one has failed: a launcher that can't
    end the others, such as srun whose helper on a node was killed, would keep the nodes. They are told to
    stop if there is a reason. They are gone when this returns or is closed, however they ended. It yields
    between two looks at them, so that trials in several lanes take turns, and calls `on_poll`.
    """
    folder = program.folder
    ranks = launcher(program)
    started = time.time()  # only now: the time that a forkserver takes to load is no trial's
    watchdog = Watchdog(folder, program.world_size, timeout)
    exit_code: int | None = None
    hang: Failure | None = None
    next_signal = 0.0  # on the monotonic clock
    ends_at = math.inf  # likewise
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                exit_code = ranks.wait(poll_seconds)
            # Nothing can be saved in a folder that is gone, though a rank may make it again.
            if not folder.assignment_path.exists():
                raise HarnessError(
                    f"{folder.path.parent}: moved or removed while {folder.path.name} ran, which was ended;"
                    " move it back, or name the results folder that it is in now, and run again"
                )
            observed = ranks.observed_failures()
            if exit_code is not None:
                break
            now = time.monotonic()
            hang = watchdog.look()
            if hang is not None or watchdog.launcher_hangs or now > ends_at:
                break
            on_poll()
            yield
            # The signal is repeated because a launcher that has just been started may miss it.
            if stop_reason() and now > next_signal:
                next_signal = now + SIGNAL_INTERVAL
                ranks.interrupt()
            for failure in observed:
                if ends_at == math.inf and _is_cause(failure, folder):
                    ends_at = now + GRACE_SECONDS
    finally:
        ranks.end()
    return how_ended(folder, program.world_size, started, hang, observed, exit_code)


def _is_cause(failure: Failure, folder: TrialFolder) -> bool:
    """Return whether a rank failed for more than the loss of its connection to another one.

    The other may have been on a node that died, which Slurm notices later and says so.
    """
    if failure.rank is None:
        return False
    with suppress(BadInput):
        of_rank = read_rank_result(folder.result_path(failure.rank)).failure
        return of_rank is None or of_rank.kind != "ConnectionLost"
    return True


def how_ended(
    folder: TrialFolder,
    world_size: int,
    started: float,
    hang: Failure | None = None,
    observed_failures: Sequence[Failure] = (),
    exit_code: int | None = None,
) -> Ended:
    """Return what ranks left in their folder, and the failure that caused all others.

    `hang` says why they were ended if they hung; `observed_failures` are those that the launcher saw, whose
    own exit code is None if it still ran.

    The cause is the earliest failure of the first of these kinds that occurs: an interruption, which leaves
    a checkpoint whatever comes after it; a rank that the launcher saw end before it had written a
    result; an error that a rank reports; a hang; a connection that a rank has
    lost, since the other end of it is the cause; a result that is missing.
    """
    ranks: list[RankResult] = []
    missing: list[int] = []
    for rank in range(world_size):
        path = folder.result_path(rank)
        if path.exists():
            ranks.append(read_rank_result(path))
        else:
            missing.append(rank)
    reported = [result.failure for result in ranks if result.failure is not None]
    own = [failure for failure in reported if failure.kind not in PEER_FAILURES]
    candidates = [*own, *observed_failures]
    interrupted = [failure for failure in candidates if failure.kind == INTERRUPTED]
    # A rank that has written a result and is then ended was well.
    exited = [failure for failure in observed_failures if failure.rank in (None, *missing)]
    # If nothing else explains a missing result, the launcher's end or the last line of its log may.
    launcher_end = "still ran"
    if exit_code is not None:
        end = rank_failure(0, exit_code, folder)
        launcher_end = f"{end.kind}, {end.message}"
    last_line = last_log_line(folder.launch_log)
    message = f"left no result; its launcher: {launcher_end}; the last line of its log: {last_line}"
    lost = [Failure(kind="Lost", message=message, rank=rank) for rank in missing]
    hangs = [] if hang is None else [hang]
    for causes in (interrupted, exited, own, hangs, reported, lost):
        if causes:
            first = min(causes, key=lambda failure: failure.at)
            failure = _explain(first, missing, folder)
            return Ended(started=started, failure=failure, ranks=ranks)
    return Ended(started=started, failure=None, ranks=ranks)


def _explain(failure: Failure, missing: Sequence[int], folder: TrialFolder) -> Failure:
    """Return a failure with the log to look into, and with what explains it if its rank did not."""
    if failure.log is not None:  # as of a hang
        return failure
    logs = [folder.launch_log, *sorted(folder.log_folder.glob("rank*.log"))]
    if failure.rank is not None and folder.rank_log(failure.rank).exists():
        logs.insert(0, folder.rank_log(failure.rank))
    # A rank that was killed may have printed nothing, but another one that it has left alone.
    log = next((path for path in logs if path.exists() and path.stat().st_size), None)
    message = failure.message
    if log != logs[0] and failure.kind in ("Exited", "Killed"):
        message = f"{message}; its log is empty"
    elif failure.kind == "Exited":
        message = f"{message}; the last words of its log: {last_log_line(logs[0])}"
    if failure.kind in PEER_FAILURES and missing:  # one of which is most likely the other end
        message = f"{message}; no result of rank {ranges(missing)}"
    trace = failure.traceback
    if failure.kind == "Killed":  # faulthandler has written the stacks of one that crashed
        trace = last_stack(logs[0]) or None
    log_path = str((log or logs[0]).relative_to(folder.path))
    return replace(failure, message=message, log=log_path, traceback=trace)
