"""Compares two recorded trials by their records, and runs them again where these differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.analysis.evidence import Agreement, compare_evidence, evidence_of_record
from harness.records.record import Record
from harness.reproduce.tracing import LAST_STEP, TraceDiff, TracedTrial, diff_trials
from harness.spec.cluster import Profile

TIMEOUT = 3600.0  # seconds, for a trial whose limit was not recorded


@dataclass(frozen=True, kw_only=True)
class RecordedDiff:
    """Where two recorded trials diverge."""

    a: Record
    b: Record
    agreement: Agreement  # of what both have recorded
    again: TraceDiff | None  # by running them again, None where their records are the same

    @property
    def is_same(self) -> bool:
        """Return whether nothing differs in the records."""
        return self.again is None


def diff_recorded(a: Record, b: Record, profile: Profile) -> RecordedDiff:
    """Return where two recorded trials diverge.

    Where their records differ, both run again with the code and the data here, up to the first step
    that is known to differ.
    """
    agreement = compare_evidence(evidence_of_record(a), evidence_of_record(b))
    first = agreement.first_difference
    if first is None:
        return RecordedDiff(a=a, b=b, agreement=agreement, again=None)
    timeout = max(_timeout(a), _timeout(b))
    last_step = LAST_STEP if first.step is None else first.step
    again = diff_trials(_to_trace(a), _to_trace(b), profile, timeout, last_step)
    return RecordedDiff(a=a, b=b, agreement=agreement, again=again)


def _timeout(record: Record) -> float:
    """Return the recorded limit of a trial's duration in seconds."""
    return TIMEOUT if record.settings is None else record.settings.timeout


def _to_trace(record: Record) -> TracedTrial:
    """Return a recorded trial as one to trace."""
    base_folder = Path() if record.settings is None else Path(record.settings.base_folder)
    return TracedTrial(trial=record.trial, base_folder=base_folder)
