"""The rules by which a trial has a state, row by row."""

from __future__ import annotations

from typing import Any, Literal, get_args

import pytest

from harness.slurm.rules import RULES, JobState, RecordHeader, State, TrialFacts, conclude

RecordStatus = Literal["done", "failed", "invalid", "interrupted"]


def header(status: RecordStatus, detail: str = "why") -> RecordHeader:
    """Return the header of a first attempt's record."""
    return RecordHeader(status=status, attempt=1, detail=detail)


def submitted(job: JobState, record: RecordHeader | None = None, **facts: Any) -> TrialFacts:
    """Return the facts of a trial that was submitted, whose job is in this state."""
    defaults: dict[str, Any] = {"phase": None, "is_submitted": True, "job_id": "7_0"}
    return TrialFacts(record=record, job=job, **(defaults | facts))


def held(record: RecordHeader | None = None) -> TrialFacts:
    """Return the facts of a trial whose job is held."""
    return submitted("pending", record, pending_reason="JobHeldUser", hold_remedy="release it")


def local(record: RecordHeader | None = None, **facts: Any) -> TrialFacts:
    """Return the facts of a trial that was not submitted."""
    defaults: dict[str, Any] = {"phase": None, "is_submitted": False}
    return TrialFacts(record=record, **(defaults | facts))


# The number of the rule, facts from which it concludes, and what it concludes.
ROWS: list[tuple[int, TrialFacts, State, str]] = [
    # A report of a trial whose job runs, or whose job may run, is that of a running attempt.
    (0, submitted("running", phase="train"), "running", ""),
    (0, submitted("unknown", phase="train"), "running", ""),
    (0, local(phase="train"), "running", ""),
    (0, local(phase="starting"), "running", "starting"),
    (0, submitted("running", header("interrupted"), phase="train"), "running", "why"),
    (0, submitted("running", header("interrupted"), phase="compile"), "running", "compile"),
    # A broken record: nobody can say how the trial ended, whatever its job does.
    (1, local(unreadable="broken"), "unreadable", "broken"),
    (1, submitted("pending", unreadable="broken"), "unreadable", "broken"),
    # A job that does not start by itself, of a trial that has to run.
    (2, held(), "held", "JobHeldUser: Slurm does not start its job; release it"),
    (
        2,
        held(header("interrupted")),
        "held",
        "JobHeldUser: Slurm does not start its job; release it",
    ),
    (6, held(header("done", "")), "done", ""),
    # A trial that its job runs again.
    (
        4,
        submitted("ending", header("failed"), is_retried=True),
        "queued",
        "to run again if its job, which is ending, was requeued: why",
    ),
    (3, submitted("running", header("failed"), is_retried=True), "queued", "to run again: why"),
    (3, submitted("pending", header("failed"), is_retried=True), "queued", "to run again: why"),
    (
        5,
        submitted("unknown", header("failed"), is_retried=True),
        "queued",
        "to run again if its job still exists: why",
    ),
    # A record says how a trial ended, whatever has become of its job.
    (6, submitted("ended", header("done", "")), "done", ""),
    (6, submitted("ended", header("done", ""), phase="train"), "done", ""),
    (6, local(header("done", "")), "done", ""),
    (7, submitted("ended", header("failed")), "failed", "why"),
    (7, submitted("ended", header("failed"), is_retried=True), "failed", "why"),
    (7, submitted("running", header("failed")), "failed", "why"),
    (8, submitted("pending", header("invalid")), "invalid", "why"),
    # An interrupted trial continues if its job exists, or may.
    (9, submitted("pending", header("interrupted")), "interrupted", "why"),
    (9, submitted("running", header("interrupted"), is_cancelled=True), "interrupted", "why"),
    (9, submitted("unknown", header("interrupted")), "interrupted", "why"),
    (9, local(header("interrupted")), "interrupted", "why"),
    (9, local(header("interrupted"), runs_locally=True), "interrupted", "why"),
    # Without a record, the job tells.
    (10, submitted("pending", pending_reason="Priority"), "queued", "Priority"),
    (10, submitted("pending", phase="train", pending_reason="Priority"), "queued", "Priority"),
    (11, submitted("running"), "queued", "its job is running another trial, or starting this one"),
    (9, submitted("ending", header("interrupted"), phase="train"), "interrupted", "why"),
    (12, submitted("ending", phase="train"), "queued", "its job is ending"),
    (13, local(runs_locally=True), "queued", ""),
    (14, local(), "missing", ""),
    (15, submitted("ended", is_cancelled=True), "cancelled", ""),
    (15, submitted("unknown", header("interrupted"), is_cancelled=True), "cancelled", "why"),
    (16, submitted("unknown"), "queued", "Slurm does not say whether its job still exists"),
    (17, submitted("ended"), "lost", "job 7_0 ended without a record of it"),
    (17, submitted("ended", phase="train"), "lost", "job 7_0 ended without a record of it"),
    (17, submitted("ended", header("interrupted")), "lost", "job 7_0 ended; why"),
    (
        17,
        submitted("ended", job_id=None),
        "lost",
        "whoever submitted it was killed before it had a job without a record of it",
    ),
]


@pytest.mark.parametrize(("number", "facts", "state", "detail"), ROWS)
def test_the_first_rule_that_applies_gives_state_and_detail(
    number: int, facts: TrialFacts, state: State, detail: str
) -> None:
    applying = [index for index, rule in enumerate(RULES) if rule.applies(facts)]
    assert applying[0] == number
    assert conclude(facts) == (state, detail)


def test_every_rule_is_tried() -> None:
    """A rule that is added needs a row in ROWS."""
    assert {row[0] for row in ROWS} == set(range(len(RULES)))


@pytest.mark.parametrize("job", ["pending", "running", "ending", "ended", "unknown"])
@pytest.mark.parametrize("status", [None, "done", "failed", "invalid", "interrupted"])
@pytest.mark.parametrize("phase", [None, "train"])
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_some_rule_applies_to_any_facts(
    job: JobState, status: RecordStatus | None, phase: str | None, is_cancelled: bool
) -> None:
    """The last rules are exhaustive: `conclude` never runs out of them."""
    record = header(status) if status else None
    for facts in (
        submitted(job, record, phase=phase, is_cancelled=is_cancelled),
        local(record, phase=phase),
    ):
        state, _ = conclude(facts)
        assert state in get_args(State)
