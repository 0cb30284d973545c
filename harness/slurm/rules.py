"""The rules by which a trial has a state: named facts, and one table read from top to bottom.

Three sources may disagree. A record on the shared folder says how an attempt has ended, but it may
be that of an earlier submission. A report of progress says that a trial runs, but whoever wrote it
may have been killed. Slurm says whether the trial's job exists, but it may not answer, and it knows
nothing of trials. `TrialFacts` puts what each source says into words, and `RULES` says which of
them counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.launch.retries import is_retried
from harness.records.goodput import Goodput
from harness.records.record import Failure, Status

# lost: its job has ended and left no record of it; missing: it was never submitted;
# held: its job does not start until somebody does something; unreadable: nobody can say, as its
# record is broken.
State = Literal[
    "queued", "held", "running", "done", "failed", "invalid", "interrupted", "cancelled", "lost",
    "missing", "unreadable", 
]  # fmt: skip
# The trial goes on if its job still exists.
OPEN_STATES = {"queued", "held", "running", "interrupted"}

# What Slurm says of a trial's job. ending: its processes are being ended, after which it may be
# requeued; unknown: Slurm did not answer.
JobState = Literal["pending", "running", "ending", "ended", "unknown"]


@dataclass(frozen=True, kw_only=True)
class RecordHeader:
    """What the status takes from a trial's record."""

    status: Status
    attempt: int  # counted from 1
    detail: str  # why it failed or is invalid
    started: float = 0.0  # seconds since the epoch
    seconds: float = 0.0  # that the attempt took
    failures: Sequence[Failure] = ()  # of all attempts, the oldest first
    goodput: Goodput | None = None  # None unless the trial has come to its end
    saves: bool = False  # at intervals
    saved_at: float = 0.0  # when it was last, since the epoch, where it failed; 0 if never

    def is_retried(self, first_attempt: int) -> bool:
        """Return whether the job that has the trial runs it again.

        `first_attempt` is the first that belongs to the job's submission; failures before it do not
        count.
        """
        return self.status == "failed" and is_retried(
            self.failures, first_attempt, saves=self.saves, saved_at=self.saved_at
        )


@dataclass(frozen=True, kw_only=True)
class TrialFacts:
    """Everything that a trial's state follows from.

    Of a trial that was never submitted, only the record, why it can't be read, the phase and
    `runs_locally` count.
    """

    record: RecordHeader | None  # of its last attempt, if the present submission made it
    phase: str | None  # what it did by its last report, such as `train`; None if there is none
    is_submitted: bool
    unreadable: str | None = None  # why its record can't be read
    is_cancelled: bool = False
    job: JobState = "ended"
    job_id: str | None = None  # None where whoever submitted was killed before it was written down
    pending_reason: str = ""  # Slurm's, of a pending job
    hold_remedy: str | None = None  # what starts a job that Slurm does not start
    is_retried: bool = False  # by its job, after a failure that is not its own
    runs_locally: bool = False  # a `harness run` on this machine is going through the sweep

    @property
    def detail(self) -> str:
        """The record's detail."""
        return self.record.detail if self.record else ""

    def has_record(self, status: str) -> bool:
        """Return whether its record has this status."""
        return self.record is not None and self.record.status == status

    def is_running(self) -> bool:
        """Return whether the trial's last report is that of a running attempt, not of a killed one.

        A job that is pending or ending runs nothing, so that the report is left over. Reports of a
        trial that was not submitted are only taken from a run that exists.
        """
        if self.phase is None:
            return False
        return self.job in ("running", "unknown") or not self.is_submitted

    def is_held(self) -> bool:
        """Return whether the trial has to run and Slurm does not start its job."""
        is_open = self.record is None or self.is_retried or self.has_record("interrupted")
        return self.hold_remedy is not None and is_open

    def is_interrupted(self) -> bool:
        """Return whether the trial was interrupted and may continue.

        With its job gone, the trial is lost instead, or cancelled.
        """
        if not self.has_record("interrupted"):
            return False
        if not self.is_submitted or self.job in ("pending", "running", "ending"):
            return True
        return self.job == "unknown" and not self.is_cancelled

    def lost_detail(self) -> str:
        """Return how the trial was lost."""
        cause = "whoever submitted it was killed before it had a job"
        if self.job_id is not None:
            cause = f"job {self.job_id} ended"
        if self.detail:
            return f"{cause}; {self.detail}"
        return f"{cause} without a record of it"


@dataclass(frozen=True)
class Rule:
    """A row of the table: a state, the facts from which it follows, and what to say with it.

    The rule counts only if none above it applies.
    """

    state: State
    applies: Callable[[TrialFacts], bool]
    detail: Callable[[TrialFacts], str] = lambda facts: facts.detail  # the record's


def _phase_detail(facts: TrialFacts) -> str:
    """Return the phase, such as `starting` or `evaluate`; of one that trains, the step tells."""
    if facts.phase in (None, "train"):
        return facts.detail
    return str(facts.phase)


RULES = (
    Rule("running", TrialFacts.is_running, _phase_detail),
    Rule(
        "unreadable",
        lambda facts: facts.unreadable is not None,
        lambda facts: facts.unreadable or "",
    ),
    Rule(
        "held",
        TrialFacts.is_held,
        lambda facts: f"{facts.pending_reason}: Slurm does not start its job; {facts.hold_remedy}",
    ),
    Rule(
        "queued",
        lambda facts: facts.is_retried and facts.job in ("pending", "running"),
        lambda facts: f"to run again: {facts.detail}",
    ),
    Rule(
        "queued",
        lambda facts: facts.is_retried and facts.job == "ending",
        lambda facts: f"to run again if its job, which is ending, was requeued: {facts.detail}",
    ),
    Rule(
        "queued",
        lambda facts: facts.is_retried and facts.job == "unknown",
        lambda facts: f"to run again if its job still exists: {facts.detail}",
    ),
    Rule("done", lambda facts: facts.has_record("done")),
    Rule("failed", lambda facts: facts.has_record("failed")),
    Rule("invalid", lambda facts: facts.has_record("invalid")),
    Rule("interrupted", TrialFacts.is_interrupted),
    Rule("queued", lambda facts: facts.job == "pending", lambda facts: facts.pending_reason),
    Rule(
        "queued",
        lambda facts: facts.job == "running",
        lambda facts: "its job is running another trial, or starting this one",
    ),
    Rule("queued", lambda facts: facts.job == "ending", lambda facts: "its job is ending"),
    Rule("queued", lambda facts: facts.runs_locally),
    Rule("missing", lambda facts: not facts.is_submitted),
    Rule("cancelled", lambda facts: facts.is_cancelled),
    Rule(
        "queued",
        lambda facts: facts.job == "unknown",
        lambda facts: "Slurm does not say whether its job still exists",
    ),
    Rule("lost", lambda facts: facts.job == "ended", TrialFacts.lost_detail),
)


def conclude(facts: TrialFacts) -> tuple[State, str]:
    """Return the state by the first rule that applies, and its detail."""
    for rule in RULES:
        if rule.applies(facts):
            return rule.state, rule.detail(facts)
    raise AssertionError(f"no rule for {facts}")
