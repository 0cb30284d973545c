"""Says when ranks have to be ended although none has failed: they hang, or their launcher does.

A rank that is stopped, or waits for another for ever, fails in no way at all. Files are looked at, not
processes, because ranks may run on other nodes: two every few seconds while training gets on, the
heartbeats of all ranks while it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic, sleep, time

from harness.core.paths import TrialFolder
from harness.core.text import ranges
from harness.measure.stacks import ask_for_stacks, last_stack, site_of
from harness.records.assignment import (
    Heartbeat,
    heartbeat_seconds,
    read_heartbeats,
    read_progress_file,
)
from harness.records.record import Failure

LOOK_SECONDS = 2.0  # between two looks of the watchdog
# Without a report of training, after which a launcher hangs whose ranks have all left a result.
LAUNCHER_SECONDS = 60.0
STALE_SECONDS = 30.0  # without a report of training, after which heartbeats are looked at
# Without a heartbeat, after which a rank counts as lost, as one does that never has the first.
SILENCE_SECONDS = 300.0
# Without progress in training, after which the trial hangs: this long, and this many times the longest
# segment of the attempt. A segment takes 2 s, or as long as one step if that is more.
MIN_STANDSTILL_SECONDS = 60.0
STANDSTILL_SEGMENTS = 10
STACK_SECONDS = 1.0  # that ranks of this machine have to write their stacks
MISSED_BEATS = 4  # by which the heartbeat of a rank that hangs is older than the others'
# Modules in which a rank waits for others, in a collective or for the device that runs it.
WAITING_MODULES = ("torch.distributed.", "torch.autograd.", "torch.cuda.", "torch.nn.parallel.")


class Watchdog:
    """Says of one attempt of a trial, from its start on, whether its ranks and their launcher hang.

    Times are those at which this process sees something change, as the clocks of nodes differ, in seconds
    that it has watched: of those in which it was stopped, perhaps together with the ranks, nothing is known.
    """

    def __init__(self, folder: TrialFolder, world_size: int, timeout: float) -> None:
        """Begin to watch a trial of `world_size` ranks that may take `timeout` seconds."""
        self._folder = folder
        self._world_size = world_size
        self._timeout = timeout
        self._looked_at = monotonic()
        self._now = 0.0  # seconds that were watched
        self.launcher_hangs = False  # has not ended long after it should have
        self._progress = (0.0, 0.0)  # when the file was modified, and since when that is known
        self._beats: dict[int, Heartbeat] = {}  # the last of each rank
        # When ranks last had that, or training was seen to get on.
        self._heard = dict.fromkeys(range(world_size), self._now)

    def look(self) -> Failure | None:
        """Return why the trial has to end, None if it may go on or was looked at just now.

        It has to end too, with what its ranks have left, once `launcher_hangs`.
        """
        since_last_look = monotonic() - self._looked_at
        half_a_beat = heartbeat_seconds(self._world_size) / 2
        if since_last_look < max(LOOK_SECONDS, half_a_beat):
            return None
        self._looked_at += since_last_look
        self._now += min(since_last_look, STALE_SECONDS)
        modified = 0.0
        with suppress(FileNotFoundError):
            modified = self._folder.progress_path.stat().st_mtime
        if modified != self._progress[0]:
            self._progress = modified, self._now
            self._heard = dict.fromkeys(self._heard, self._now)
        results = list(self._folder.attempt_path.glob("rank*.json"))
        has_ended = len(results) == self._world_size
        self.launcher_hangs = has_ended and self._now > self._progress[1] + LAUNCHER_SECONDS
        if self._now > self._timeout:
            return self._failure("Timeout", "took longer than its time-out")
        if self._now <= self._progress[1] + STALE_SECONDS:
            return None
        self._note_heartbeats()
        reason = self._silence() or self._standstill()
        return None if reason is None else self._failure("Hang", reason)

    def _note_heartbeats(self) -> None:
        """Note which ranks have had a new heartbeat; once one has, the others have to begin soon."""
        beats = read_heartbeats(self._folder.heartbeat_folder)
        if beats and not self._beats:
            self._heard = dict.fromkeys(self._heard, self._now)
        for beat in beats:
            if beat != self._beats.get(beat.rank):
                self._beats[beat.rank] = beat
                self._heard[beat.rank] = self._now

    def _silence(self) -> str | None:
        """Return which rank has had no heartbeat for too long, if there is one."""
        for rank, heard_at in self._heard.items():
            silent = self._now - heard_at
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
        trains = []
        for rank, beat in self._beats.items():
            if beat.in_step or self._now <= self._heard[rank] + limit:
                trains.append(beat.in_step)
        if seconds <= limit or not trains or not all(trains):
            return None
        return f"no progress for {seconds:.0f} s, and {slowest:.1f} s at most before"

    def _failure(self, kind: str, reason: str) -> Failure:
        """Return the failure of the trial, with the rank that the others wait for.

        Ranks of this machine write their stacks now; those elsewhere have when training stood still.
        """
        beats = read_heartbeats(self._folder.heartbeat_folder)
        for beat in beats:
            ask_for_stacks(beat.pid, beat.created)
        if beats:
            sleep(STACK_SECONDS)
        stacks = {}
        for beat in beats:
            stacks[beat.rank] = last_stack(self._folder.rank_log(beat.rank))
        hang = name_hang(beats, stacks, self._world_size)
        log = self._folder.rank_log(hang.rank or 0)
        if not log.exists():  # of a rank that has not started
            log = self._folder.launch_log
        return replace(
            hang,
            kind=hang.kind if kind == "Hang" else kind,
            message=f"{hang.message}; {reason}",
            log=str(log.relative_to(self._folder.path)),
            at=time(),
        )


def name_hang(beats: Sequence[Heartbeat], stacks: Mapping[int, str], world_size: int) -> Failure:
    """Return the failure of ranks that make no progress: which one the others wait for, and where.

    That is, in this order: a rank that has not started; the one whose heartbeat stopped first; the one
    that is furthest behind; the only one that does not wait for others. It is none where no rank can be
    told from the others. `beats` are the last of all ranks, `stacks` those of their main threads as
    tracebacks without the code, empty where unknown.
    """
    missing = sorted(set(range(world_size)) - {beat.rank for beat in beats})
    if missing:
        message = f"rank {ranges(missing)} has not started"
        return Failure(kind="Unresponsive", message=message, rank=missing[0])
    # What each does, in the user's own line if that is known.
    sites = {}
    for beat in beats:
        position = site_of(stacks[beat.rank]) or beat.position
        sites[beat.rank] = str(replace(beat, position=position))
    oldest = min(beats, key=lambda beat: beat.at)
    lag = max(beat.at for beat in beats) - oldest.at
    behind = min(beats, key=lambda beat: beat.step)
    furthest = max(beat.step for beat in beats)
    busy = [beat for beat in beats if not beat.position.startswith(WAITING_MODULES)]
    kind = "Hang"
    if lag > MISSED_BEATS * heartbeat_seconds(world_size):
        kind, culprit = "Unresponsive", oldest
        reason = f"has given no sign of life for {lag:.0f} s longer than the others"
    elif behind.step < furthest:
        culprit, reason = behind, f"others are after step {furthest}"
    elif len(busy) == 1:
        culprit, reason = busy[0], "the others wait for it" if world_size > 1 else "is the only one"
    else:
        first_two = list(sites.values())[:2]
        return Failure(kind=kind, message="; ".join(first_two))
    sentences = [f"{sites.pop(culprit.rank)}, and {reason}", *sites.values()]
    return Failure(
        kind=kind,
        message="; ".join(sentences[:2]),
        rank=culprit.rank,
        host=culprit.host,
        traceback=stacks[culprit.rank] or None,
    )
