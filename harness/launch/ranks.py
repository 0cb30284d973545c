"""Runs the ranks of a trial, or of another task of the worker, and says how they ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.core.errors import BadInput, Interrupted
from harness.core.files import last_log_line
from harness.core.paths import TrialFolder
from harness.core.processes import oom_kills
from harness.core.text import ranges
from harness.launch.launcher import Launcher, describe_end
from harness.launch.watch import POLL, watch
from harness.measure.stacks import last_stack
from harness.records.files import read_rank_result
from harness.records.record import PEER_FAILURES, Failure, RankResult

INTERRUPTED = Interrupted.__name__
# How a failure was noticed, the more certain cause first.
EXITED, REPORTED, UNREADABLE, DISCONNECTED, MISSING = range(5)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How ranks ended, and what they left."""

    started: float  # seconds since the epoch
    ended: float = field(default_factory=time.time)
    failure: Failure | None  # that caused all others; None: there is none
    ranks: Sequence[RankResult]  # of those that left a readable result, by rank


def run_ranks(
    launcher: Launcher,
    folder: TrialFolder,
    world_size: int,
    variables: Mapping[str, str],
    timeout: float,
    *,
    arguments: Sequence[str] = (),
    preload: Sequence[str] = (),
    stop_reason: Callable[[], str | None] = lambda: None,
    poll_seconds: float = POLL,
    on_poll: Callable[[], None] = lambda: None,
) -> Generator[None, None, Ended]:
    """Start the worker at every rank, with `arguments`, and wait until all have ended.

    The ranks are gone when this returns or is closed, however they ended. It yields between two looks at
    them, as `watch` does, which says what the other parameters are.
    """
    arguments = [*arguments, "--write-logs"]
    process = launcher.start(
        "harness.training.worker", folder, world_size, variables, arguments, preload=preload
    )
    started = time.time()  # only now: the time that a forkserver takes to load is no trial's
    kills_before = oom_kills()
    try:
        ended_by = yield from watch(
            process,
            launcher,
            folder,
            world_size,
            timeout,
            stop_reason=stop_reason,
            poll_seconds=poll_seconds,
            on_poll=on_poll,
        )
        launcher_end = describe_end(process.poll(), oom_kills() > kills_before)
        # Before the end, as the launcher prints how the ranks end that are ended now.
        observed = launcher.observed_failures(folder)
    finally:
        launcher.end(process, folder)
    return how_ended(folder, world_size, started, ended_by, observed, launcher_end)


def how_ended(
    folder: TrialFolder,
    world_size: int,
    started: float,
    ended_by: Failure | None = None,
    observed_failures: Sequence[Failure] = (),
    launcher_end: str = "its launcher left no word of its end",
) -> Ended:
    """Return what ranks left in their folder, and the failure that caused all others.

    `ended_by` says why they were ended, if they were; `observed_failures` are those that the launcher
    saw, and `launcher_end` says how it ended itself.

    The cause is the earliest failure of the first of these kinds that occurs: an interruption, which leaves
    a checkpoint whatever comes after it; a rank that the launcher saw end before it had written a
    result; an error that a rank reports; a result that can't be read; a connection that a rank has
    lost, since the other end of it is the cause; a result that is missing.
    """
    ranks: list[RankResult] = []
    missing: list[int] = []
    causes: list[tuple[int, Failure]] = []
    for rank in range(world_size):
        path = folder.result_path(rank)
        if not path.exists():
            missing.append(rank)
            continue
        try:
            ranks.append(read_rank_result(path))
        except BadInput as error:
            failure = Failure(kind="BadInput", message=str(error), rank=rank)
            causes.append((UNREADABLE, failure))
    for failure in observed_failures:
        # A rank that has written a result and is then ended was well.
        if failure.kind == INTERRUPTED or failure.rank in (None, *missing):
            causes.append((EXITED, failure))
    for result in ranks:
        if result.failure is not None:
            is_peer = result.failure.kind in PEER_FAILURES
            causes.append((DISCONNECTED if is_peer else REPORTED, result.failure))
    # If nothing else explains a missing result, the launcher's end or the last line of its log may.
    last_line = last_log_line(folder.launch_log)
    message = f"left no result; {launcher_end}; the last line of the launcher's log: {last_line}"
    for rank in missing:
        causes.append((MISSING, Failure(kind="Lost", message=message, rank=rank)))
    if causes and ended_by is None:
        _, cause = min(causes, key=lambda kind_and_failure: _order(*kind_and_failure))
        ended_by = _explain(cause, missing, folder)
    return Ended(started=started, failure=ended_by, ranks=ranks)


def _order(kind: int, failure: Failure) -> tuple[bool, int, float]:
    """Return what sorts failures by how likely they are to have caused the others."""
    return failure.kind != INTERRUPTED, kind, failure.at


def _explain(failure: Failure, missing: Sequence[int], folder: TrialFolder) -> Failure:
    """Return a failure with the log to look into, and with what explains it if its rank did not."""
    log = folder.launch_log
    if failure.rank is not None and folder.rank_log(failure.rank).exists():
        log = folder.rank_log(failure.rank)
    message = failure.message
    if failure.kind == "Exited":
        message = f"{message}; the last words of its log: {last_log_line(log)}"
    if failure.kind in PEER_FAILURES and missing:  # one of which is most likely the other end
        message = f"{message}; no result of rank {ranges(missing)}"
    trace = failure.traceback
    if failure.kind == "Killed":  # faulthandler has written the stacks of one that crashed
        trace = last_stack(log) or None
    log_path = str(log.relative_to(folder.path))
    return replace(failure, message=message, log=log_path, traceback=trace)
