"""Says in a sentence why the ranks of a trial make no progress, from what they left.

Pure: what ranks leave is read by `harness.launch.watchdog`, and written by `harness.training.flight`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.core.text import ranges
from harness.measure.stacks import ENDED, STOPPED, main_stack, site_of
from harness.records.running import (
    CollectiveCall,
    FlightRecord,
    Heartbeat,
    ProcessView,
    heartbeat_seconds,
)

MISSED_BEATS = 4  # by which the heartbeat of a rank that hangs is older than the others'
# Modules in which a rank waits for others, in a collective or for the device that runs it.
WAITING_MODULES = ("torch.distributed.", "torch.autograd.", "torch.cuda.", "torch.nn.parallel.")
LOADER = "/torch/utils/data/dataloader.py"  # among the calls of a rank that waits for its loader
# Where a worker waits for the next batch that it should fetch.
IDLE_WORKER = ("worker.py", "queues.py", "selectors.py", "connection.py")
# Operations to which all ranks give tensors of the same sizes.
EVEN_OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
# How gloo ends a process that has got more than it asked for.
TOO_LONG = re.compile(r"op\.preamble\.length <= op\.nbytes\. (?P<sent>\d+) vs (?P<expected>\d+)")


@dataclass(frozen=True, kw_only=True)
class RankEvidence:
    """All that is known of a rank of a trial that makes no progress."""

    heartbeat: Heartbeat  # its last one
    flight: FlightRecord | None = None  # None of a rank that left none
    process: ProcessView | None = None  # as others see it, of a rank that does not answer

    @property
    def rank(self) -> int:
        """Return the number of the rank."""
        return self.heartbeat.rank

    @property
    def view(self) -> ProcessView | None:
        """Return what its process does, None where nobody can see that."""
        return self.process if self.flight is None else self.flight.process

    @property
    def calls(self) -> Sequence[CollectiveCall]:
        """Return its last collectives, none of a rank that left no record."""
        return () if self.flight is None else self.flight.calls

    @property
    def stack(self) -> str | None:
        """Return the stack of its main thread, and that of native code if it is known."""
        if self.view is None:
            return None
        return "\n".join(filter(None, (self.view.native_stack, self.view.stack))) or None

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.heartbeat.host}"


@dataclass(frozen=True, kw_only=True)
class Hang:
    """The reason why a trial makes no progress."""

    sentence: str
    culprit: RankEvidence | None = None  # None where no rank can be told from the others

    def __str__(self) -> str:
        return self.sentence


def name_hang(evidence: Sequence[RankEvidence], world_size: int) -> Hang | None:
    """Return why the ranks make no progress, None where nothing is known of any.

    That is, in this order: a rank that has not started; the first collective in which ranks called
    different ones; a rank that others wait for in a collective; and what heartbeats tell.
    """
    if not evidence:
        return None
    missing = set(range(world_size)) - {rank.rank for rank in evidence}
    if missing:
        return Hang(sentence=f"{_named(missing)} has not started")
    return (
        _divergence(evidence)
        or _absence(evidence)
        or _straggler(evidence, world_size)
        or Hang(sentence=f"{_describe(evidence[0])}, like the others")
    )


def _named(ranks: Iterable[int]) -> str:
    """Return `rank 1` or `ranks 0, 2-3`."""
    numbers = list(ranks)
    return f"rank{'' if len(numbers) == 1 else 's'} {ranges(numbers)}"


# Collectives


def _groups(evidence: Sequence[RankEvidence]) -> dict[str, dict[int, dict[int, CollectiveCall]]]:
    """Return the calls by group, rank and number; all that left a record are in that of all ranks."""
    groups: dict[str, dict[int, dict[int, CollectiveCall]]] = {"": {}}
    for rank in evidence:
        if rank.flight is not None:
            groups[""][rank.rank] = {}
        for call in rank.calls:
            groups.setdefault(call.group, {}).setdefault(rank.rank, {})[call.number] = call
    return groups


def _divergence(evidence: Sequence[RankEvidence]) -> Hang | None:
    """Return the first collective of a group in which its ranks called different ones."""
    for calls_by_rank in _groups(evidence).values():
        numbers = {number for calls in calls_by_rank.values() for number in calls}
        for number in sorted(numbers):
            calls = {
                rank: calls[number] for rank, calls in calls_by_rank.items() if number in calls
            }
            kinds = _by_kind(calls)
            if len(kinds) > 1:
                return _name_divergence(evidence, calls, kinds)
    return None


def _by_kind(calls: Mapping[int, CollectiveCall]) -> list[list[int]]:
    """Return the ranks whose calls are the same, the smallest set of ranks first.

    Sizes count unless all ranks have finished: some backends take unequal ones.
    """
    is_over = all(call.finished for call in calls.values())
    kinds: dict[tuple[str, str], list[int]] = {}
    for rank, call in calls.items():
        has_size = not is_over and call.operation.startswith(EVEN_OPERATIONS)
        kind = (call.operation, call.sizes if has_size else "")
        kinds.setdefault(kind, []).append(rank)
    return sorted(kinds.values(), key=lambda ranks: (len(ranks), [-rank for rank in ranks]))


def _name_divergence(
    evidence: Sequence[RankEvidence],
    calls: Mapping[int, CollectiveCall],
    kinds: Sequence[Sequence[int]],
) -> Hang:
    """Say which ranks called what as their collective of the same number.

    The culprit is a rank that differs from more than one other.
    """
    operations = {call.operation for call in calls.values()}
    number = calls[kinds[0][0]].number
    parts = []
    for ranks in kinds:
        call = calls[ranks[0]]
        verb = "called"
        if not call.finished:
            verb = "is in" if len(ranks) == 1 else "are in"
        text = str(call)
        if len(operations) == 1:
            text = _with_sizes(call)
        parts.append(f"{_named(ranks)} {verb} {text}")
    end = f"they diverged after {number - 1:,}" if len(operations) > 1 else "their sizes differ"
    is_alone = len(kinds[0]) == 1 and len(calls) > 2
    culprit = next((rank for rank in evidence if rank.rank == kinds[0][0]), None)
    return Hang(sentence=f"{', '.join(parts)}: {end}", culprit=culprit if is_alone else None)


@dataclass(frozen=True, kw_only=True)
class Absence:
    """A rank that others wait for in a collective."""

    rank: RankEvidence
    call: CollectiveCall  # that the others wait in
    waiting: Sequence[int]

    @property
    def waits_too(self) -> bool:
        """Return whether the rank waits in another collective itself."""
        return any(not call.finished for call in self.rank.calls)


def _absence(evidence: Sequence[RankEvidence]) -> Hang | None:
    """Return a rank that others wait for in a collective, to which it has not come.

    If it waits for others itself, in another group, one of those is returned.
    """
    absences = [
        absence
        for calls_by_rank in _groups(evidence).values()
        for absence in _absences(evidence, calls_by_rank)
    ]
    if not absences:
        return None
    first = min(absences, key=lambda absence: absence.waits_too)
    culprit, waiting = first.rank, _named(first.waiting)
    wait = "waits" if len(first.waiting) == 1 else "wait"
    if culprit.flight is None:
        text = f"{_describe(culprit)}, and {waiting} {wait} for it in {first.call}"
    else:
        text = f"{_describe(culprit)}, and never came to {first.call}, in which {waiting} {wait}"
    others = {absence.rank.rank for absence in absences if absence.call == first.call}
    others.discard(culprit.rank)
    if others:
        text = f"{text}; nor is there any sign of {_named(others)} in it"
    return Hang(sentence=text, culprit=culprit)


def _absences(
    evidence: Sequence[RankEvidence], calls_by_rank: Mapping[int, Mapping[int, CollectiveCall]]
) -> Iterator[Absence]:
    """Yield the ranks of a group that others wait for; those that do not answer may be among them."""
    unfinished: dict[int, CollectiveCall] = {}  # in which each rank waits
    for number, own_calls in calls_by_rank.items():
        unfinished_calls = [call for call in own_calls.values() if not call.finished]
        if unfinished_calls:
            unfinished[number] = min(unfinished_calls, key=lambda call: call.number)
    if not unfinished:
        return
    first = min(unfinished.values(), key=lambda call: call.number)
    waiting = [rank for rank, call in unfinished.items() if call.number == first.number]
    for rank in evidence:
        calls = calls_by_rank.get(rank.rank)
        if rank.flight is None or (calls is not None and max(calls, default=0) < first.number):
            yield Absence(rank=rank, call=first, waiting=waiting)


# Ranks


def _describe(rank: RankEvidence) -> str:
    """Say what a rank does."""
    view, beat = rank.view, rank.heartbeat
    if view is None:
        return str(beat)
    place = site_of(view.stack) or beat.position
    step = f"after step {beat.step}"
    if view.state in STOPPED:
        return f"{rank} is stopped (SIGSTOP) in {place} {step}"
    if view.state in ENDED:
        return f"{rank} has ended {step}"
    if rank.flight is None:
        return f"{rank} is in {place} {step}, in native code that keeps Python's lock"
    worker = _suspect_worker(rank.flight) if LOADER in view.stack else None
    if worker is not None:
        return f"{rank} waits {step} for its loader, whose worker {_describe_process(worker)}"
    return f"{rank} is in {place}{_sleep(view)} {step}"


def _suspect_worker(flight: FlightRecord) -> ProcessView | None:
    """Return the loader's worker that a rank waits for: one that is stopped or dead, or else works."""
    for worker in flight.children:
        if worker.state in (*STOPPED, *ENDED):
            return worker
    for worker in flight.children:
        if not site_of(worker.stack).startswith(IDLE_WORKER):
            return worker
    return None


def _describe_process(view: ProcessView) -> str:
    """Say what a process does that is no rank."""
    name, place = f"(process {view.pid})", site_of(view.stack)
    if view.state in ENDED:
        return f"{name} is dead"
    if view.state in STOPPED:
        return f"{name} is stopped (SIGSTOP){f' in {place}' if place else ''}"
    return f"{name} is in {place or 'native code'}{_sleep(view)}"


def _sleep(view: ProcessView) -> str:
    """Return the function of the kernel that a process sleeps in, in parentheses."""
    return f" (asleep in {view.waits_in})" if view.waits_in else ""


def _straggler(evidence: Sequence[RankEvidence], world_size: int) -> Hang | None:
    """Return the rank that the others wait for, as far as heartbeats tell.

    That is the one whose heartbeat stopped first; the one that is furthest behind; the only one
    that does not wait in a collective.
    """
    beats = [rank.heartbeat for rank in evidence]
    oldest = min(evidence, key=lambda rank: rank.heartbeat.at)
    lag = max(beat.at for beat in beats) - oldest.heartbeat.at
    if lag > MISSED_BEATS * heartbeat_seconds(world_size):
        reason = f"and has given no sign of life for {lag:.0f} s longer than the others"
        return Hang(sentence=f"{_describe(oldest)}, {reason}", culprit=oldest)
    behind = min(evidence, key=lambda rank: rank.heartbeat.step)
    furthest = max(beat.step for beat in beats)
    if behind.heartbeat.step < furthest:
        reason = f"and others are after step {furthest}"
        return Hang(sentence=f"{_describe(behind)}, {reason}", culprit=behind)
    busy = [rank for rank in evidence if not rank.heartbeat.position.startswith(WAITING_MODULES)]
    if len(busy) == 1:
        reason = "and the others wait for it" if world_size > 1 else "and is the only one"
        return Hang(sentence=f"{_describe(busy[0])}, {reason}", culprit=busy[0])
    return None


# Crashes


def explain_collective(rank: int | None, log: str, evidence: Sequence[RankEvidence]) -> str | None:
    """Say of which collectives ranks have failed, None if what they left does not tell.

    `log` is the end of the log of `rank`, which has failed first. gloo ends a rank that gets more than
    it asked for by SIGABRT, so it leaves its stack in its log, and only the others leave records.
    """
    too_long = TOO_LONG.search(log)
    if too_long is None:
        hang = _divergence(evidence)
        return None if hang is None else str(hang)
    place = site_of(main_stack(log)) or "unknown code"
    text = f"rank {rank} in {place} got {int(too_long['sent']):,} bytes where it expected"
    text = f"{text} {int(too_long['expected']):,}"
    for calls_by_rank in _groups([other for other in evidence if other.rank != rank]).values():
        for other, calls in calls_by_rank.items():
            if calls:
                call = calls[max(calls)]
                return f"{text}, as rank {other} is in {_with_sizes(call)}: their sizes differ"
    return text


def _with_sizes(call: CollectiveCall) -> str:
    """Return a collective with the sizes of what the rank gave."""
    return str(call).replace(" (", f" of {call.sizes} (", 1)
