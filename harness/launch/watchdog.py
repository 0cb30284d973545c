"""Watches a running trial for what its launcher does not tell: ranks that hang, and its own hang.

A launcher ends all ranks when one has failed, and then ends itself. One that can't, such as srun
whose helper on a node was killed, would keep the nodes until the trial's time-out. And a rank that
is stopped, or waits for another for ever, fails in no way at all.

Files are looked at, not processes, because ranks may run on other nodes. While training gets on,
that is two files every few seconds, however many ranks there are. While it does not, it is also when
each heartbeat was written, twice in the time between two of a rank. Once the trial seems to hang, all
ranks are asked what they do, and what they answer decides what its failure says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from harness.core.errors import BadInput, Interrupted
from harness.core.paths import TrialFolder
from harness.core.text import ranges
from harness.launch.hang import MISSED_BEATS, RankEvidence, name_hang
from harness.measure.stacks import ask_for_stacks, last_stack, process_state
from harness.records.files import read_rank_result
from harness.records.record import Failure
from harness.records.running import (
    heartbeat_seconds,
    read_heartbeat,
    read_heartbeats,
    read_progress_file,
)

LOOK_SECONDS = 2.0  # between two looks
# That a launcher has to end once a rank has failed, or all have ended. torchrun and Slurm both give
# the other ranks up to 30 s to end.
LAUNCHER_SECONDS = 60.0
STALE_SECONDS = 30.0  # without a report of training, after which heartbeats are looked at
SILENCE_SECONDS = 300.0  # without a heartbeat, after which a rank counts as lost
START_SECONDS = (
    900.0  # that all ranks may take to their first heartbeat: a node may fetch a container
)
# Without progress in training, after which the ranks are asked: this long, and this many times the
# longest segment of the attempt. A segment takes 2 s, or as long as one step if that is more.
MIN_STANDSTILL_SECONDS = 60.0
STANDSTILL_SEGMENTS = 10
STACK_SECONDS = 2.0  # that a rank has to write its stacks, after its next two heartbeats


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The reason to end a trial."""

    reason: str  # for the launcher's log, one line
    failure: Failure | None = None  # None: the ranks' own results say how the trial ended


@dataclass(frozen=True, kw_only=True)
class StallQuestion:
    """A question to all ranks, after which the trial ends unless it turns out to make progress."""

    kind: str  # of the failure
    reason: str  # why they are asked
    deadline: float  # on the watchdog's clock


class Watchdog:
    """Watches one attempt of a trial, from its start on."""

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
        self._silent_since = self._looked_at  # ranks that have had no heartbeat yet
        self._ends_at = self._looked_at + timeout
        self._has_begun = False  # whether a rank has had a heartbeat
        self._first_result_at: float | None = None
        self._progress_changed: tuple[int, float] = (0, self._looked_at)
        self._sound_results: set[str] = set()  # names of results that report no error
        self._heartbeats_due = self._looked_at  # when they are looked at again
        # By name of the file: when it was modified last, and when that was seen for the first time.
        self._heartbeats: dict[str, tuple[int, float]] = {}
        self._question: StallQuestion | None = None

    def look(self) -> Verdict | None:
        """Return why the trial has to end, None if it may go on or was looked at just now."""
        now = self._clock()
        since_last_look = now - self._looked_at
        if since_last_look < LOOK_SECONDS:
            return None
        self._looked_at = now
        if since_last_look > LOOK_SECONDS + STALE_SECONDS:
            # This process was stopped, perhaps together with the ranks: nothing is known of them.
            self._first_result_at = None
            self._progress_changed = (0, now)
            self._silent_since = now
            self._heartbeats.clear()
        return self._hanging_launcher(now) or self._hang(now)

    def _hanging_launcher(self, now: float) -> Verdict | None:
        """Return the verdict on a launcher that still runs long after it should have ended."""
        results = self._result_names()
        if not results:
            return None
        if self._first_result_at is None:
            self._first_result_at = now
        if now < self._first_result_at + LAUNCHER_SECONDS:
            return None
        if len(results) < self._world_size and not self._is_any_failed(results):
            return None
        ranks = range(self._world_size)
        missing = [rank for rank in ranks if self._folder.result_path(rank).name not in results]
        if not missing:
            return Verdict(reason="all ranks have ended, and the launcher has not")
        reason = f"a rank has failed, and the launcher has not ended rank {ranges(missing)}"
        return Verdict(reason=reason)

    def _result_names(self) -> set[str]:
        """Return the names of the results that ranks have left, as every rank does that ends by
        itself.
        """
        return {path.name for path in self._folder.attempt_path.glob("rank*.json")}

    def _is_any_failed(self, results: set[str]) -> bool:
        """Return whether any of these results reports an error, other than that its rank was
        interrupted.

        Ranks that are interrupted end one after the other, as they save different shards.
        """
        for name in results - self._sound_results:
            try:
                failure = read_rank_result(self._folder.attempt_path / name).failure
            except BadInput:
                continue
            if failure is not None and failure.kind != Interrupted.__name__:
                return True
            self._sound_results.add(name)
        return False

    # Hangs

    def _hang(self, now: float) -> Verdict | None:
        """Return the verdict on a trial that hangs, or has taken too long, once ranks have answered.

        A trial that makes progress again before that is let alone.
        """
        if self._question is not None and self._question.kind == "Timeout":
            return self._verdict(now, self._question)
        if now > self._ends_at:
            return self._verdict(now, self._ask(now, "Timeout", self._timeout_reason()))
        if not self._is_progress_stale(now):
            self._heartbeats.clear()
            self._withdraw()
            return None
        if self._question is not None:
            return self._verdict(now, self._question)
        if now < self._heartbeats_due:
            return None
        self._heartbeats_due = now + heartbeat_seconds(self._world_size) / 2
        reason = self._silence(now) or self._standstill(now)
        if reason is not None:
            self._ask(now, "Hang", reason)
        return None

    def _silence(self, now: float) -> str | None:
        """Return which rank has had no heartbeat for too long, if there is one.

        Times are those at which this process has seen a new heartbeat, because the clocks of nodes
        differ. A rank that never had one may take as long once another has, and START_SECONDS before.
        """
        # A folder that is not there yet has none.
        with suppress(FileNotFoundError), os.scandir(self._folder.heartbeat_folder) as entries:
            for entry in entries:
                name = entry.name
                # Still being written; that of a rank that was killed would stay as it is.
                if name.startswith("."):
                    continue
                modified = entry.stat().st_mtime_ns
                last_modified, seen_at = self._heartbeats.get(name, (None, now))
                if modified != last_modified:
                    seen_at = now
                self._heartbeats[name] = (modified, seen_at)
        if self._heartbeats and not self._has_begun:
            self._has_begun = True
            self._silent_since = now
        limit = SILENCE_SECONDS if self._has_begun else START_SECONDS
        results = self._result_names()  # a rank's has the same name as its heartbeat
        for rank in range(self._world_size):
            name = self._folder.heartbeat_path(rank).name
            _, seen_at = self._heartbeats.get(name, (0, self._silent_since))
            if name not in results and now > seen_at + limit:
                return f"rank {rank} has given no sign of life for {now - seen_at:.0f} s"
        return None

    def _standstill(self, now: float) -> str | None:
        """Return for how long training has made no progress, if that is too long for this trial.

        None while a rank does something else than training, which may take long. A rank that has
        given no sign of life for as long either is taken to do what the others do, if they train.
        """
        progress = read_progress_file(self._folder.progress_path)
        slowest = progress.get("slowest")
        if slowest is None:
            return None
        seconds = now - self._progress_changed[1]
        limit = max(MIN_STANDSTILL_SECONDS, STANDSTILL_SEGMENTS * slowest)
        if seconds <= limit:
            return None
        trains = False
        for rank in range(self._world_size):
            path = self._folder.heartbeat_path(rank)
            beat = read_heartbeat(path)
            if beat is None:
                return None
            _, seen_at = self._heartbeats.get(path.name, (0, now))
            if not beat.in_step and now <= seen_at + limit:
                return None
            trains = trains or beat.in_step
        if not trains:
            return None
        return f"no progress for {seconds:.0f} s, and {slowest:.1f} s at most before"

    def _timeout_reason(self) -> str:
        """Return that the trial has taken too long, and how far it came."""
        progress = read_progress_file(self._folder.progress_path)
        reached = "no step"
        if progress:
            reached = f"step {progress['step']}"
            if progress["steps"] is not None:  # as of a script that decides when it ends
                reached += f" of {progress['steps']}"
        return f"took longer than its time-out; it had reached {reached}"

    def _ask(self, now: float, kind: str, reason: str) -> StallQuestion:
        """Have all ranks write their stacks with their next heartbeat.

        One that has none is asked by a signal, if it is on this host. A signal would end what a rank
        waits for in a call of the system.
        """
        with suppress(OSError):
            self._folder.stacks_request.touch()
        seconds = heartbeat_seconds(self._world_size)
        for beat in read_heartbeats(self._folder.heartbeat_folder):
            if time.time() - beat.at > MISSED_BEATS * seconds:
                ask_for_stacks(beat.pid, beat.created)
        deadline = now + 2 * seconds + STACK_SECONDS
        self._question = StallQuestion(kind=kind, reason=reason, deadline=deadline)
        return self._question

    def _withdraw(self) -> None:
        """Forget the question, if there is one."""
        if self._question is not None:
            self._folder.stacks_request.unlink(missing_ok=True)
        self._question = None

    def _verdict(self, now: float, question: StallQuestion) -> Verdict | None:
        """Return the verdict once ranks have had the time to write their stacks."""
        if now < question.deadline:
            return None
        self._folder.stacks_request.unlink(missing_ok=True)
        hang = name_hang(read_evidence(self._folder), self._world_size)
        message = question.reason if hang is None else f"{hang}; {question.reason}"
        kind = question.kind
        rank, host, stack = None, None, None
        if hang is not None and hang.culprit is not None:
            beat, stack = hang.culprit.heartbeat, hang.culprit.stack or None
            rank, host = beat.rank, beat.host
        if hang is not None and hang.silent_rank is not None:
            rank = hang.silent_rank
            kind = "Unresponsive" if kind == "Hang" else kind
        log = self._folder.rank_log(rank or 0)
        failure = Failure(
            kind=kind,
            message=message,
            rank=rank,
            host=host,
            log=str(log.relative_to(self._folder.path)),
            traceback=stack,
            at=time.time(),
        )
        return Verdict(reason=str(failure), failure=failure)

    def _is_progress_stale(self, now: float) -> bool:
        """Return whether rank 0 has not reported progress for a while."""
        try:
            modified = self._folder.progress_path.stat().st_mtime_ns
        except FileNotFoundError:
            modified = 0
        if modified != self._progress_changed[0]:
            self._progress_changed = (modified, now)
        return now > self._progress_changed[1] + STALE_SECONDS


def read_evidence(folder: TrialFolder) -> list[RankEvidence]:
    """Return what is known of the ranks that have started, by rank."""
    evidence = []
    for beat in read_heartbeats(folder.heartbeat_folder):
        state = process_state(beat.pid, beat.created)
        stack = last_stack(folder.rank_log(beat.rank))
        age = time.time() - beat.at
        evidence.append(RankEvidence(heartbeat=beat, age=age, state=state, stack=stack))
    return evidence
