"""What a check returns: that all is well, what is wrong, or why it can't say."""

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
    """Return that a check found nothing wrong; `measured` is what it saw."""
    return Outcome("passed", measured)


def problem(measured: str, advice: str) -> Outcome:
    """Return that something is wrong: what was seen, and what to do about it."""
    return Outcome("problem", measured, advice)


def noted(measured: str, advice: str) -> Outcome:
    """Return what a user should know and may well want, and what to do about it otherwise."""
    return Outcome("noted", measured, advice)


def skipped(reason: str) -> Outcome:
    """Return that a check can't say anything of this workload."""
    return Outcome("skipped", reason)
