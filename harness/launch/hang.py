"""Says in a sentence why the ranks of a trial make no progress, from what they left.

Pure: what ranks leave is read by `harness.launch.watchdog`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.core.text import ranges
from harness.measure.stacks import ENDED, STOPPED, site_of
from harness.records.running import Heartbeat, heartbeat_seconds

MISSED_BEATS = 4  # by which the heartbeat of a rank that hangs is older than the others'
# Modules in which a rank waits for others, in a collective or for the device that runs it.
WAITING_MODULES = ("torch.distributed.", "torch.autograd.", "torch.cuda.", "torch.nn.parallel.")


@dataclass(frozen=True, kw_only=True)
class RankEvidence:
    """All that is known of a rank of a trial that makes no progress."""

    heartbeat: Heartbeat  # its last one
    age: float = 0.0  # of that, seconds
    state: str = ""  # of its process, as psutil calls it; empty where it can't be seen
    stack: str = ""  # of its main thread, as a traceback without the code; empty where unknown

    @property
    def rank(self) -> int:
        """Return the number of the rank."""
        return self.heartbeat.rank

    def __str__(self) -> str:
        """Say what the rank does, or did at its last heartbeat."""
        beat = self.heartbeat
        name, step = f"rank {self.rank} on {beat.host}", f"after step {beat.step}"
        if self.state in ENDED:
            return f"{name} has ended {step}"
        if self.state in STOPPED:
            return f"{name} is stopped (SIGSTOP); {self.age:.0f} s ago it was in {beat.position} {step}"
        return f"{name} is in {site_of(self.stack) or beat.position} {step}"


@dataclass(frozen=True, kw_only=True)
class Hang:
    """The reason why a trial makes no progress."""

    sentence: str
    culprit: RankEvidence | None = None  # None where no rank can be told from the others
    silent_rank: int | None = None  # that has no heartbeat, or none any more

    def __str__(self) -> str:
        return self.sentence


def name_hang(evidence: Sequence[RankEvidence], world_size: int) -> Hang | None:
    """Return why the ranks make no progress, None where nothing is known of any.

    That is, in this order: the ranks that have not started; the one whose heartbeat stopped first; the one
    that is furthest behind; the only one that does not wait for others.
    """
    if not evidence:
        return None
    missing = set(range(world_size)) - {rank.rank for rank in evidence}
    if missing:
        return Hang(sentence=f"{_named(missing)} has not started", silent_rank=min(missing))
    oldest = min(evidence, key=lambda rank: rank.heartbeat.at)
    lag = max(rank.heartbeat.at for rank in evidence) - oldest.heartbeat.at
    if lag > MISSED_BEATS * heartbeat_seconds(world_size):
        reason = f"and has given no sign of life for {lag:.0f} s longer than the others"
        return Hang(sentence=f"{oldest}, {reason}", culprit=oldest, silent_rank=oldest.rank)
    behind = min(evidence, key=lambda rank: rank.heartbeat.step)
    furthest = max(rank.heartbeat.step for rank in evidence)
    if behind.heartbeat.step < furthest:
        return Hang(sentence=f"{behind}, and others are after step {furthest}", culprit=behind)
    busy = [rank for rank in evidence if not rank.heartbeat.position.startswith(WAITING_MODULES)]
    if len(busy) == 1:
        reason = "and the others wait for it" if world_size > 1 else "and is the only one"
        return Hang(sentence=f"{busy[0]}, {reason}", culprit=busy[0])
    places = [f"{rank}" for rank in evidence[:2]]
    more = ", and so on" if len(evidence) > len(places) else ""
    return Hang(sentence=f"{', '.join(places)}{more}")


def _named(ranks: Iterable[int]) -> str:
    """Return `rank 1` or `ranks 0, 2-3`."""
    numbers = list(ranks)
    return f"rank{'' if len(numbers) == 1 else 's'} {ranges(numbers)}"
