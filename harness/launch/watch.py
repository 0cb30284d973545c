"""Waits until ranks have ended, or have to be ended: the only place that does, and with the only deadline.

How they ended is for the launcher and the ranks' own results to say, and whether the trial runs again
for `retries`. A launcher ends all ranks when one has failed, and then itself. One that can't, such as srun
whose helper on a node was killed, would keep the nodes. And a rank that is stopped, or waits for another
for ever, fails in no way at all.

Files are looked at, not processes, because ranks may run on other nodes: two every few seconds while
training gets on, the heartbeats of all ranks while it does not. Once the trial seems to hang, all ranks are
asked what they do, and what they answer decides what its failure says.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from harness.core.errors import BadInput, HarnessError, Interrupted
from harness.core.paths import TrialFolder
from harness.core.processes import Process
from harness.core.text import ranges
from harness.launch.launcher import GRACE_SECONDS, Launcher
from harness.measure.stacks import (
    ENDED,
    STOPPED,
    ask_for_stacks,
    last_stack,
    process_state,
    site_of,
)
from harness.records.assignment import (
    Heartbeat,
    heartbeat_seconds,
    read_heartbeats,
    read_progress_file,
)
from harness.records.files import read_rank_result
from harness.records.record import Failure

NO_FILE = (0, 0)  # the state of a file that is not there
POLL = 0.1  # seconds between two looks at whether the launcher has ended
SIGNAL_INTERVAL = 2.0  # seconds between two signals to ranks that are to stop
LOOK_SECONDS = 2.0  # between two looks of the watchdog
# Without a new result, after which a launcher hangs whose ranks have failed or all ended. torchrun and
# Slurm both give the other ranks up to 30 s to end.
LAUNCHER_SECONDS = 60.0
STALE_SECONDS = 30.0  # without a report of training, after which heartbeats are looked at
SILENCE_SECONDS = 300.0  # without a heartbeat, after which a rank counts as lost
# That all ranks may take to their first heartbeat: a node may fetch a container.
START_SECONDS = 900.0
# Without progress in training, after which the trial hangs: this long, and this many times the longest
# segment of the attempt. A segment takes 2 s, or as long as one step if that is more.
MIN_STANDSTILL_SECONDS = 60.0
STANDSTILL_SEGMENTS = 10
STACK_SECONDS = 2.0  # that a rank has to write its stacks, after its next two heartbeats
MISSED_BEATS = 4  # by which the heartbeat of a rank that hangs is older than the others'
# Modules in which a rank waits for others, in a collective or for the device that runs it.
WAITING_MODULES = ("torch.distributed.", "torch.autograd.", "torch.cuda.", "torch.nn.parallel.")


def watch(
    process: Process,
    launcher: Launcher,
    folder: TrialFolder,
    world_size: int,
    timeout: float,
    *,
    stop_reason: Callable[[], str | None] = lambda: None,
    poll_seconds: float = POLL,
    on_poll: Callable[[], None] = lambda: None,
) -> Generator[None, None, Failure | None]:
    """Wait until the ranks have ended, or have to be ended, and return why.

    None if their own results say how they ended. Tells the ranks to stop if there is a reason, and ends
    the wait after `timeout` seconds. It yields between two looks, so that trials in several lanes take
    turns, and calls `on_poll`.
    """
    # Both are on the monotonic clock.
    next_signal = 0.0
    grace_ends: float | None = None  # of ranks that a launcher lets run once another has failed
    seen = NO_FILE, NO_FILE  # the states of the files that say how ranks have failed
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
        if stop_reason() and now > next_signal:
            next_signal = now + SIGNAL_INTERVAL
            launcher.interrupt(process)
        failure = watchdog.look()
        if failure is not None:
            with folder.launch_log.open("a", encoding="utf-8") as log:
                log.write(f"harness: {failure}\n")
            return failure
        if watchdog.launcher_hangs or (grace_ends is not None and now > grace_ends):
            return None
        # What ranks failed of is searched for only when there is more to read, as trials are training.
        state = file_state(folder.launch_log), file_state(folder.failures_path)
        if grace_ends is None and state != seen:
            seen = state
            if any(_is_cause(failure, folder) for failure in launcher.observed_failures(folder)):
                grace_ends = now + GRACE_SECONDS


def _is_cause(failure: Failure, folder: TrialFolder) -> bool:
    """Return whether a rank failed for more than the loss of its connection to another one.

    The other may have been on a node that died, which Slurm notices later and says so.
    """
    if failure.rank is None:
        return False
    of_rank = _result_failure(folder.result_path(failure.rank))
    return of_rank is None or of_rank.kind != "ConnectionLost"


def _result_failure(path: Path) -> Failure | None:
    """Return the failure that a rank's result reports; None for none, and for no readable result."""
    with suppress(BadInput):
        return read_rank_result(path).failure
    return None


def _refuse_moved_folder(folder: TrialFolder) -> None:
    """Raise HarnessError if the folder of a running trial is gone: nothing can be saved there.

    A rank may have made it again, to write what it was about to.
    """
    if not folder.assignment_path.exists():
        raise HarnessError(
            f"{folder.path.parent}: moved or removed while {folder.path.name} ran, which was ended;"
            " move it back, or name the results folder that it is in now, and run the same command again"
        )


def file_state(path: Path) -> tuple[int, int]:
    """Return the size of a file in bytes and when it was modified, which change if it does."""
    with suppress(FileNotFoundError):
        status = path.stat()
        return status.st_size, status.st_mtime_ns
    return NO_FILE


# Hangs


class Watchdog:
    """Says of one attempt of a trial, from its start on, whether its ranks and their launcher hang.

    Times are those at which this process sees something change, as the clocks of nodes differ, in seconds
    that it has watched: of those in which it was stopped, perhaps together with the ranks, nothing is known.
    """

    def __init__(
        self,
        folder: TrialFolder,
        world_size: int,
        timeout: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to watch a trial of `world_size` ranks that may take `timeout` seconds.

        `clock` returns seconds.
        """
        self._folder = folder
        self._world_size = world_size
        self._clock = clock
        self._looked_at = clock()
        self._now = 0.0  # seconds that were watched
        self._ends_at = timeout
        self.launcher_hangs = False  # has not ended long after it should have
        self._results = (0, 0.0)  # how many ranks have left one, and since when
        self._progress = (NO_FILE, 0.0)  # the state of the file, and since when
        # Of each rank, since training was seen to get on: its last heartbeat, and since when.
        self._beats: dict[int, tuple[Heartbeat, float]] = {}
        self._beats_due = 0.0  # when heartbeats are looked at again
        self._starts_by = START_SECONDS  # a rank that has had no heartbeat yet
        self._has_begun = False  # whether a rank has had one
        # Why all ranks are asked what they do: the failure's kind and reason. They answer until then.
        self._question: tuple[str, str] | None = None
        self._answers_end = 0.0

    def look(self) -> Failure | None:
        """Return why the trial has to end, None if it may go on or was looked at just now.

        It has to end too, by what its ranks say themselves, once `launcher_hangs`.
        """
        since_last_look = self._clock() - self._looked_at
        if since_last_look < LOOK_SECONDS:
            return None
        self._looked_at += since_last_look
        self._now += min(since_last_look, STALE_SECONDS)
        self.launcher_hangs = self._is_launcher_late()
        state = file_state(self._folder.progress_path)
        if state != self._progress[0]:
            self._progress = state, self._now
            self._beats.clear()
        return self._hang()

    def _is_launcher_late(self) -> bool:
        """Return whether a rank has failed, or all have ended, so long ago that the launcher hangs.

        Ranks that are interrupted end one after the other, as they save different shards.
        """
        results = list(self._folder.attempt_path.glob("rank*.json"))
        if len(results) != self._results[0]:
            self._results = len(results), self._now
        if not results or self._now < self._results[1] + LAUNCHER_SECONDS:
            return False
        failures = [_result_failure(path) for path in results]
        kinds = {failure.kind for failure in failures if failure is not None}
        return len(results) == self._world_size or bool(kinds - {Interrupted.__name__})

    def _hang(self) -> Failure | None:
        """Return the failure of a trial that hangs, or has taken too long, once ranks have answered.

        A trial that makes progress again before that is let alone.
        """
        is_stale = self._now > self._progress[1] + STALE_SECONDS
        if self._question is not None and self._question[0] == "Hang" and not is_stale:
            self._folder.stacks_request.unlink(missing_ok=True)
            self._question = None
        if self._question is not None:
            return self._failure(*self._question) if self._now > self._answers_end else None
        if self._now > self._ends_at:
            self._ask("Timeout", self._timeout_reason())
        elif is_stale and self._now > self._beats_due:
            self._beats_due = self._now + heartbeat_seconds(self._world_size) / 2
            self._note_heartbeats()
            reason = self._silence() or self._standstill()
            if reason is not None:
                self._ask("Hang", reason)
        return None

    def _note_heartbeats(self) -> None:
        """Note which ranks have had a new heartbeat."""
        for beat in read_heartbeats(self._folder.heartbeat_folder):
            last, _ = self._beats.get(beat.rank, (None, 0.0))
            if beat != last:
                self._beats[beat.rank] = beat, self._now
        if self._beats and not self._has_begun:
            self._has_begun = True
            self._starts_by = self._now + SILENCE_SECONDS

    def _silence(self) -> str | None:
        """Return which rank has had no heartbeat for too long, if there is one."""
        for rank in range(self._world_size):
            _, seen_at = self._beats.get(rank, (None, self._starts_by - SILENCE_SECONDS))
            silent = self._now - seen_at
            if silent > SILENCE_SECONDS and not self._folder.result_path(rank).exists():
                return f"rank {rank} has given no sign of life for {silent:.0f} s"
        return None

    def _standstill(self) -> str | None:
        """Return for how long training has made no progress, if that is too long for this trial.

        None while a rank does something else than training, which may take long. A rank that has
        given no sign of life for as long either is taken to do what the others do, if they train.
        """
        slowest = read_progress_file(self._folder.progress_path).get("slowest")
        if slowest is None or len(self._beats) < self._world_size:
            return None
        seconds = self._now - self._progress[1]
        limit = max(MIN_STANDSTILL_SECONDS, STANDSTILL_SEGMENTS * slowest)
        heard = []
        for beat, seen_at in self._beats.values():
            if beat.in_step or self._now <= seen_at + limit:
                heard.append(beat.in_step)
        if seconds <= limit or not heard or not all(heard):
            return None
        return f"no progress for {seconds:.0f} s, and {slowest:.1f} s at most before"

    def _timeout_reason(self) -> str:
        """Return that the trial has taken too long, and how far it came."""
        progress = read_progress_file(self._folder.progress_path)
        reached = f"step {progress['step']}" if progress else "no step"
        if progress.get("steps") is not None:  # None of a script that decides when it ends
            reached += f" of {progress['steps']}"
        return f"took longer than its time-out; it had reached {reached}"

    def _ask(self, kind: str, reason: str) -> None:
        """Have all ranks write their stacks with their next heartbeat.

        One that has none is asked by a signal, if it is on this host. A signal would end what a rank
        waits for in a call of the system.
        """
        self._question = kind, reason
        seconds = heartbeat_seconds(self._world_size)
        self._answers_end = self._now + 2 * seconds + STACK_SECONDS
        with suppress(OSError):
            self._folder.stacks_request.touch()
        for beat in read_heartbeats(self._folder.heartbeat_folder):
            if time.time() - beat.at > MISSED_BEATS * seconds:
                ask_for_stacks(beat.pid, beat.created)

    def _failure(self, kind: str, reason: str) -> Failure:
        """Return the failure of the trial, now that ranks have had the time to write their stacks."""
        self._folder.stacks_request.unlink(missing_ok=True)
        beats = read_heartbeats(self._folder.heartbeat_folder)
        hang = name_hang([observe(beat, self._folder) for beat in beats], self._world_size)
        log = self._folder.rank_log(hang.rank or 0)
        return replace(
            hang,
            kind=hang.kind if kind == "Hang" else kind,
            message=f"{hang.message}; {reason}",
            log=str(log.relative_to(self._folder.path)),
            at=time.time(),
        )


@dataclass(frozen=True, kw_only=True)
class ObservedRank:
    """All that is known of a rank of a trial that makes no progress."""

    beat: Heartbeat  # its last one
    age: float = 0.0  # of that, seconds
    state: str = ""  # of its process, as psutil calls it; empty where it can't be seen
    stack: str = ""  # of its main thread, as a traceback without the code; empty where unknown

    def __str__(self) -> str:
        """Say what the rank does, or did at its last heartbeat."""
        beat = self.beat
        name, step = f"rank {beat.rank} on {beat.host}", f"after step {beat.step}"
        if self.state in ENDED:
            return f"{name} has ended {step}"
        if self.state in STOPPED:
            return f"{name} is stopped (SIGSTOP); {self.age:.0f} s ago it was in {beat.position} {step}"
        return f"{name} is in {site_of(self.stack) or beat.position} {step}"


def observe(beat: Heartbeat, folder: TrialFolder) -> ObservedRank:
    """Return what is known of a rank that has had a heartbeat."""
    return ObservedRank(
        beat=beat,
        age=time.time() - beat.at,
        state=process_state(beat.pid, beat.created),
        stack=last_stack(folder.rank_log(beat.rank)),
    )


def name_hang(ranks: Sequence[ObservedRank], world_size: int) -> Failure:
    """Return the failure of ranks that make no progress: which one the others wait for, and where.

    That is, in this order: a rank that has not started; the one whose heartbeat stopped first; the one
    that is furthest behind; the only one that does not wait for others. It is none where no rank can be
    told from the others.
    """
    missing = sorted(set(range(world_size)) - {rank.beat.rank for rank in ranks})
    if missing:
        message = f"rank {ranges(missing)} has not started"
        return Failure(kind="Unresponsive", message=message, rank=missing[0])
    oldest = min(ranks, key=lambda rank: rank.beat.at)
    lag = max(rank.beat.at for rank in ranks) - oldest.beat.at
    behind = min(ranks, key=lambda rank: rank.beat.step)
    furthest = max(rank.beat.step for rank in ranks)
    busy = [rank for rank in ranks if not rank.beat.position.startswith(WAITING_MODULES)]
    kind = "Hang"
    if lag > MISSED_BEATS * heartbeat_seconds(world_size):
        kind = "Unresponsive"
        culprit, reason = (
            oldest,
            f"has given no sign of life for {lag:.0f} s longer than the others",
        )
    elif behind.beat.step < furthest:
        culprit, reason = behind, f"others are after step {furthest}"
    elif len(busy) == 1:
        culprit, reason = busy[0], "the others wait for it" if world_size > 1 else "is the only one"
    else:
        return Failure(kind=kind, message="; ".join(map(str, ranks[:2])))
    waiting = [str(rank) for rank in ranks if rank is not culprit]
    return Failure(
        kind=kind,
        message="; ".join([f"{culprit}, and {reason}", *waiting[:1]]),
        rank=culprit.beat.rank,
        host=culprit.beat.host,
        traceback=culprit.stack or None,
    )
