"""The outcomes of a check: passed, a problem, a note, or skipped with a reason."""

from __future__ import annotations

from dataclasses import dataclass

from harness.preflight.report import CheckFinding, Status


@dataclass(frozen=True)
class Outcome:
    """The answer of a check, without its name."""

    status: Status
    measured: str
    advice: str = ""

    def finding(self, check: str) -> CheckFinding:
        """Return the outcome with the name of its check."""
        return CheckFinding(
            check=check, status=self.status, measured=self.measured, advice=self.advice
        )


def passed(measured: str) -> Outcome:
    """Return that a check found nothing wrong; `measured` is the evidence."""
    return Outcome("passed", measured)


def problem(measured: str, advice: str) -> Outcome:
    """Return a problem: the evidence, and what to do about it."""
    return Outcome("problem", measured, advice)


def noted(measured: str, advice: str) -> Outcome:
    """Return a note on what may be intended, and what to do about it otherwise."""
    return Outcome("noted", measured, advice)


def skipped(reason: str) -> Outcome:
    """Return that a check does not apply to this workload."""
    return Outcome("skipped", reason)
