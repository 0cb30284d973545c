"""Watches a running trial for what its launcher does not tell: ranks that hang, and its own hang.

A launcher ends all ranks when one has failed, and then ends itself. One that can't, such as srun
whose helper on a node was killed, would keep the nodes until the trial's time-out. And a rank that
is stopped fails in no way at all.

Files are looked at, not processes, because ranks may run on other nodes. While training gets on,
that is two files every few seconds, however many ranks there are. While it does not, it is also when
each heartbeat was written, twice in the time between two of a rank; only that of a silent rank is
read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import BadInput, Interrupted
from harness.core.paths import TrialFolder
from harness.core.text import ranges
from harness.records.files import read_rank_result
from harness.records.record import Failure
from harness.records.running import Heartbeat, heartbeat_seconds, read_heartbeat

LOOK_SECONDS = 2.0  # between two looks
# That a launcher has to end once a rank has failed, or all have ended. torchrun and Slurm both give
# the other ranks up to 30 s to end.
LAUNCHER_SECONDS = 60.0
STALE_SECONDS = 30.0  # without a report of training, after which heartbeats are looked at
SILENCE_SECONDS = 300.0  # without a heartbeat, after which a rank counts as lost
MISSED_BEATS = 4  # by which the heartbeat of a rank that hangs is older than the others'
# Modules in which a rank waits for others, in a collective or for the device that runs it.
WAITING_MODULES = ("torch.distributed.", "torch.autograd.", "torch.cuda.", "torch.nn.parallel.")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The reason to end a trial."""

    reason: str  # for the launcher's log, one line
    failure: Failure | None = None  # None: the ranks' own results say how the trial ended


class Watchdog:
    """Watches one attempt of a trial, from its start on."""

    def __init__(
        self,
        folder: TrialFolder,
        world_size: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to watch a trial of `world_size` ranks; `clock` returns seconds."""
        self._folder = folder
        self._world_size = world_size
        self._clock = clock
        self._looked_at = clock()
        self._first_result_at: float | None = None
        self._progress_changed: tuple[int, float] = (0, self._looked_at)
        self._sound_results: set[str] = set()  # names of results that report no error
        self._heartbeats_due = self._looked_at  # when they are looked at again
        # By name of the file: when it was modified last, and when that was seen for the first time.
        self._heartbeats: dict[str, tuple[int, float]] = {}

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
            self._heartbeats.clear()
        return self._hanging_launcher(now) or self._silent_rank(now)

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
        return {path.name for path in self._folder.path.glob("rank*.json")}

    def _is_any_failed(self, results: set[str]) -> bool:
        """Return whether any of these results reports an error, other than that its rank was
        interrupted.

        Ranks that are interrupted end one after the other, as they save different shards.
        """
        for name in results - self._sound_results:
            try:
                failure = read_rank_result(self._folder.path / name).failure
            except BadInput:
                continue
            if failure is not None and failure.kind != Interrupted.__name__:
                return True
            self._sound_results.add(name)
        return False

    def _silent_rank(self, now: float) -> Verdict | None:
        """Return the verdict on a rank that has had no heartbeat for too long, if there is one.

        Times are those at which this process has seen a new heartbeat, because the clocks of nodes
        differ. A rank that never had a heartbeat is still starting.
        """
        if not self._is_progress_stale(now):
            self._heartbeats.clear()
            return None
        if now < self._heartbeats_due:
            return None
        self._heartbeats_due = now + heartbeat_seconds(self._world_size) / 2
        results = self._result_names()  # a rank's has the same name as its heartbeat
        for name, modified in _modification_times(self._folder.heartbeat_folder):
            last_modified, seen_at = self._heartbeats.get(name, (None, now))
            if modified != last_modified:
                seen_at = now
            self._heartbeats[name] = (modified, seen_at)
            if name in results or now <= seen_at + SILENCE_SECONDS:
                continue
            beat = read_heartbeat(self._folder.heartbeat_folder / name)
            if beat is not None:
                message = f"no sign of life for {now - seen_at:.0f} s; at its last one, {beat}"
                failure = failure_of(beat, "Unresponsive", message, self._folder)
                return Verdict(reason=str(failure), failure=failure)
        return None

    def _is_progress_stale(self, now: float) -> bool:
        """Return whether rank 0 has not reported progress for a while."""
        try:
            modified = self._folder.progress_path.stat().st_mtime_ns
        except FileNotFoundError:
            modified = 0
        if modified != self._progress_changed[0]:
            self._progress_changed = (modified, now)
        return now > self._progress_changed[1] + STALE_SECONDS


def _modification_times(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the name of each heartbeat in a folder and when it was written, in nanoseconds.

    A folder that is not there yet has none. Files that are still being written begin with a dot; one
    of a rank that was killed would stay as it is.
    """
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                yield entry.name, entry.stat().st_mtime_ns


def failure_of(beat: Heartbeat, kind: str, message: str, folder: TrialFolder) -> Failure:
    """Return a failure at the rank that a heartbeat is of, with the log of that rank."""
    return Failure(
        kind=kind,
        message=message,
        rank=beat.rank,
        host=beat.host,
        log=str(folder.rank_log(beat.rank).relative_to(folder.path)),
        at=time.time(),
    )


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """The rank that the others wait for, as far as heartbeats tell."""

    rank: int
    heartbeat: Heartbeat | None  # its last one; None of a rank that never had any
    reason: str  # how it differs from the others

    def __str__(self) -> str:
        if self.heartbeat is None:
            return f"rank {self.rank} {self.reason}"
        return f"{self.heartbeat}, {self.reason}"


def find_straggler(beats: Sequence[Heartbeat], world_size: int) -> Straggler | None:
    """Return the rank that the others wait for, None where nothing tells one from the others.

    That is, in this order, a rank without a heartbeat; the one whose heartbeat stopped first; the
    one that is furthest behind; the only one that does not wait in a collective. `beats` are the
    last heartbeats, by rank.
    """
    if not beats:
        return None
    missing = set(range(world_size)) - {beat.rank for beat in beats}
    if missing:
        return Straggler(rank=min(missing), heartbeat=None, reason="has not started")
    oldest = min(beats, key=lambda beat: beat.at)
    lag = max(beat.at for beat in beats) - oldest.at
    if lag > MISSED_BEATS * heartbeat_seconds(world_size):
        reason = f"and has given no sign of life for {lag:.0f} s longer than the others"
        return Straggler(rank=oldest.rank, heartbeat=oldest, reason=reason)
    behind = min(beats, key=lambda beat: beat.step)
    furthest = max(beat.step for beat in beats)
    if behind.step < furthest:
        reason = f"and others are after step {furthest}"
        return Straggler(rank=behind.rank, heartbeat=behind, reason=reason)
    busy = [beat for beat in beats if not beat.position.startswith(WAITING_MODULES)]
    if len(busy) == 1:
        reason = "and the others wait for it" if world_size > 1 else "and is the only one"
        return Straggler(rank=busy[0].rank, heartbeat=busy[0], reason=reason)
    return None


def describe_stall(beats: Sequence[Heartbeat], world_size: int) -> str | None:
    """Say which rank the others wait for, or else what rank 0 does; None without heartbeats."""
    straggler = find_straggler(beats, world_size)
    if straggler is not None:
        return str(straggler)
    return f"{beats[0]}, like the others" if beats else None
