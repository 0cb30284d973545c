"""Bounds the step at which two recorded trials diverge, without running anything.

Records have the loss of every rank at every step, the metrics of evaluations, and digests: of the
order of samples, of the parameters at the end, and of everything at the fingerprinted steps. These
bound the first step that differs, and name it where fingerprints are close enough.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import BadFile
from harness.records.record import RankFingerprints, RankResult, Record
from harness.records.trace import (
    AFTER_MICRO_STEPS,
    PHASES,
    Mark,
    decode_trace,
    digest_bytes,
    phase_digests,
)
from harness.reproduce.divergence import TraceComparison, Traces, compare
from harness.reproduce.tracing import TraceDiff, TracedTrial

WHOLE = "all tensors"  # the name of a mark that has the digest of a whole phase
ORDER = "order of all samples"
PARAMETERS = "parameters at the end"


@dataclass(frozen=True, kw_only=True)
class RecordedTrial:
    """A recorded trial that is done."""

    record: Record
    folder: Path  # with the files of its fingerprints, if they exist

    @property
    def timeout(self) -> float:
        """The recorded limit of its duration in seconds, an hour if that is unknown."""
        return 3600.0 if self.record.settings is None else self.record.settings.timeout

    def to_trace(self) -> TracedTrial:
        """Return it as a trial to trace, with the current code and data."""
        settings = self.record.settings
        base_folder = Path() if settings is None else Path(settings.base_folder)
        return TracedTrial(trial=self.record.trial, base_folder=base_folder)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The steps between which two records first differ."""

    comparison: TraceComparison
    equal_up_to: int  # the last step up to which everything is known to be equal; 0 for the start
    fingerprinted: Set[int]  # steps that have fingerprints in both, counted from 1

    @property
    def first_differing(self) -> int | None:
        """Return the first step that is known to differ, None if the records are the same."""
        if self.comparison.divergence is None:
            return None
        return self.comparison.divergence.earliest.mark.step

    @property
    def is_exact(self) -> bool:
        """Return whether the records alone name the first difference.

        They do if the step before was the same, and the first step that differs was fingerprinted.
        """
        step = self.first_differing
        if step is None or step not in self.fingerprinted:
            return False
        return step <= self.equal_up_to + 1


@dataclass(frozen=True, kw_only=True)
class RecordedDiff:
    """Where two recorded trials diverge, as far as it is known."""

    a: RecordedTrial
    b: RecordedTrial
    bounds: Bounds  # by their records
    again: TraceDiff | None  # by running them again, None where the records were enough

    @property
    def is_same(self) -> bool:
        """Return whether nothing differs, in the records and when run again."""
        if not self.bounds.comparison.is_same:
            return False
        return self.again is None or self.again.is_same


def find_bounds(a: RecordedTrial, b: RecordedTrial) -> Bounds:
    """Return the bounds by two records; raises BadFile for fingerprints changed since."""
    files_a, files_b = _read_files(a), _read_files(b)
    if files_a is None or files_b is None:
        files_a, files_b = _whole_phases(a.record), _whole_phases(b.record)
    traces_a = _with_record(files_a, a.record)
    traces_b = _with_record(files_b, b.record)
    comparison = compare(traces_a, traces_b)
    steps = _fingerprinted(a.record) & _fingerprinted(b.record)
    equal_steps = steps  # whose recorded values are all equal
    if comparison.divergence is not None:
        mark = comparison.divergence.earliest.mark
        # An evaluation comes after all that its step computes.
        last_equal = mark.step if mark.phase == "evaluation" else mark.step - 1
        equal_steps = {step for step in steps if step <= last_equal}
    return Bounds(
        comparison=comparison,
        equal_up_to=max(equal_steps, default=0),
        fingerprinted=steps,
    )


def unlike_record(trial: RecordedTrial, traces: Traces) -> tuple[int, str] | None:
    """Return the first fingerprint, as step and phase, that a run of the trial did not repeat.

    `traces` have one mark a moment. None if the run repeated all that it reached.
    """
    differing = []
    for result, marks in zip(trial.record.ranks, traces, strict=True):
        repeated = phase_digests(marks)
        for fingerprint in result.fingerprints.steps if result.fingerprints else ():
            for phase, digest in fingerprint.digests.items():
                if repeated.get((fingerprint.step, phase), digest) != digest:
                    differing.append((fingerprint.step, phase))
    return min(differing, key=lambda entry: (entry[0], PHASES.index(entry[1])), default=None)


def _fingerprinted(record: Record) -> set[int]:
    """Return the steps that were fingerprinted at all ranks, counted from 1."""
    steps = [{step + 1 for step in result.fingerprinted_steps} for result in record.ranks]
    return set.intersection(*steps)


def _read_files(trial: RecordedTrial) -> list[list[Mark]] | None:
    """Return the marks of all tensors by rank, None where a file is not there."""
    traces = []
    for result in trial.record.ranks:
        marks = _read_file(trial.folder, result.fingerprints)
        if marks is None:
            return None
        traces.append(marks)
    return traces


def _read_file(folder: Path, fingerprints: RankFingerprints | None) -> list[Mark] | None:
    """Return the marks of one rank's file without evaluations, which are in the record."""
    if fingerprints is None or not (folder / fingerprints.file).exists():
        return None
    path = folder / fingerprints.file
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != fingerprints.file_digest:
        raise BadFile(
            f"{path}: found the SHA-256 {digest[:12]}…; allowed: {fingerprints.file_digest[:12]}…,"
            " as recorded: it was changed after it was written"
        )
    marks = decode_trace(content, path)
    return [mark for mark in marks if mark.phase != "evaluation"]


def _whole_phases(record: Record) -> list[list[Mark]]:
    """Return a mark for each phase of the steps that were fingerprinted, by rank."""
    traces = []
    for result in record.ranks:
        marks = []
        for fingerprint in result.fingerprints.steps if result.fingerprints else ():
            for phase, digest in fingerprint.digests.items():
                marks.append(_mark(fingerprint.step, phase, WHOLE, digest))
        traces.append(marks)
    return traces


def _with_record(traces: Sequence[Sequence[Mark]], record: Record) -> Traces:
    """Add the marks that a record has of all steps to traces: losses, evaluations and the end."""
    complete = []
    for result, marks in zip(record.ranks, traces, strict=True):
        complete.append([*marks, *_losses(result)])
    complete[0] += _of_all_ranks(record)
    return complete


def _losses(result: RankResult) -> list[Mark]:
    """Return the marks of a rank's loss at each step."""
    if result.loss is None:
        return []
    marks = []
    for step, loss in enumerate(result.loss.unpack(), start=1):
        digest = digest_bytes(str(loss.dtype), (), loss.tobytes())
        marks.append(_mark(step, "forward", "mean loss of the step", digest))
    return marks


def _of_all_ranks(record: Record) -> list[Mark]:
    """Return the marks that ranks share: evaluations, order and final parameters."""
    if record.rank0 is None or record.loss is None:
        return []
    marks = []
    for evaluation in record.rank0.evaluations:
        for name, value in evaluation.all_metrics.items():
            digest = digest_bytes("float64", (), struct.pack("<d", value))
            marks.append(_mark(evaluation.step, "evaluation", name, digest))
    last = record.loss.count
    # The digest includes the workload's state.
    marks.append(_mark(last, "workload state", PARAMETERS, record.rank0.parameter_digest))
    if record.order_digest is not None:
        marks.append(_mark(last, "samples", ORDER, record.order_digest))
    return marks


def _mark(step: int, phase: str, name: str, digest: str) -> Mark:
    """Return a mark of a step; phases up to the backward are parts of its first micro-step."""
    is_early = PHASES.index(phase) <= PHASES.index("backward")
    micro_step = 1 if is_early else AFTER_MICRO_STEPS
    return Mark(step=step, micro_step=micro_step, phase=phase, name=name, digest=digest)
