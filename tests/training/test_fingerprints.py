"""What a trial computes is digested at the steps that its sweep names, and nothing else changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.core.errors import BadInput, Interrupted
from harness.core.paths import TrialFolder
from harness.measure.summary import summarize
from harness.records.assignment import Assignment
from harness.records.files import read_record, write_record
from harness.records.record import RankFingerprints, Record, StepFingerprint
from harness.records.trace import PHASES, Mark, decode_trace
from harness.sweep.cell import Fingerprints
from harness.training import train
from harness.training.recorder import fingerprint_recorder
from harness.training.step import observe_nothing
from harness.training.train import Trainer
from tests.factories import make_record, same_loss, with_ranks
from tests.support.line import LineFit, Options
from tests.support.training import make_assignment, make_trainer
from tests.training.test_interruption import STEPS, VARIANTS, attempt, load_assignment
from workloads import Settings

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
CHOSEN = Fingerprints(steps=[3], every=8)
EACH_STEP = Fingerprints(every=1)


def trial_with(folder: Path, variant: str, chosen: Fingerprints | None) -> Assignment:
    folder.mkdir()
    assignment = load_assignment(folder, VARIANTS[variant])
    return replace(assignment, fingerprints=chosen)


def marks_of(folder: TrialFolder) -> list[Mark]:
    path = folder.fingerprint_path(0)
    return decode_trace(path.read_bytes(), path)


def test_chosen_steps_and_the_last_are_fingerprinted_and_change_nothing(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path / "with" / "trial")
    result = attempt(folder, trial_with(tmp_path / "with", "noise", CHOSEN), None)
    without = attempt(
        TrialFolder(tmp_path / "without" / "trial"),
        trial_with(tmp_path / "without", "noise", None),
        None,
    )
    assert without.fingerprints is None
    assert result.rank0 is not None
    assert without.rank0 is not None
    assert result.rank0.parameter_digest == without.rank0.parameter_digest
    assert same_loss(result, without)
    fingerprints = result.fingerprints
    assert fingerprints is not None
    assert [fingerprint.step for fingerprint in fingerprints.steps] == [3, 8, 16, STEPS]
    absent = {
        "buffers",
        "buffers before",
        "after_step",
        "workload state",
        "evaluation",
    }  # the line has none
    assert set(fingerprints.steps[0].digests) == set(PHASES) - absent
    content = (folder.path / fingerprints.file).read_bytes()
    assert hashlib.sha256(content).hexdigest() == fingerprints.file_digest
    names = {mark.name for mark in marks_of(folder) if mark.phase == "optimizer state"}
    assert "inner.layers.0.weight (exp_avg)" in names
    assert result.phases["fingerprint"] > 0


@pytest.mark.parametrize(
    "variant",
    ["adam", pytest.param("noise, workers", marks=pytest.mark.nightly), "tree", "memory"],
)
def test_a_resumed_trial_has_the_same_fingerprints(tmp_path: Path, variant: str) -> None:
    """After the first and the last step, and in and before an evaluation."""
    whole_folder = TrialFolder(tmp_path / "whole" / "trial")
    whole = attempt(whole_folder, trial_with(tmp_path / "whole", variant, EACH_STEP), None)
    folder = TrialFolder(tmp_path / "resumed" / "trial")
    assignment = trial_with(tmp_path / "resumed", variant, EACH_STEP)
    for stop in [1, 5, 11, STEPS]:
        with pytest.raises(Interrupted):
            attempt(folder, assignment, stop)
        with folder.fingerprint_path(0).open("a", encoding="utf-8") as file:
            file.write('[19, 1, "data", "batch[0]", "of a step after the check')
    resumed = attempt(folder, assignment, None)
    assert resumed.fingerprints is not None
    assert whole.fingerprints is not None
    assert resumed.fingerprints.steps == whole.fingerprints.steps
    in_order = sorted(marks_of(folder), key=lambda mark: mark.moment)
    assert in_order == sorted(marks_of(whole_folder), key=lambda mark: mark.moment)


class Steps:
    """Notes in how many segments steps are trained, and whether their model is watched."""

    def __init__(self, trainer: Trainer) -> None:
        self.segments: list[tuple[int, int, bool, int]] = []
        self.trainer = trainer
        self.train_segment = trainer.train_segment
        trainer.train_segment = self.note  # type: ignore[method-assign]

    def note(self, batches: object, stop: int) -> train.Segment:
        hooks = [parameter._backward_hooks for parameter in self.trainer.parts.model.parameters()]
        watched = sum(bool(entry) for entry in hooks)
        segment = self.train_segment(batches, stop)  # type: ignore[arg-type]
        self.segments.append((segment.start_step, stop, segment.is_observed, watched))
        return segment


def test_fingerprinted_steps_are_segments_of_their_own_and_leave_no_hooks(tmp_path: Path) -> None:
    workload = LineFit(Options(), Settings())
    trainer = make_trainer(make_assignment(steps=9), workload, tmp_path)
    chosen = Fingerprints(steps=[3, 4])
    with fingerprint_recorder(trainer.parts, trainer.state, chosen) as trainer.hooks:
        steps = Steps(trainer)
        trainer.run()
    assert steps.segments == [
        (0, 1, False, 0),
        (1, 2, False, 0),
        (2, 4, True, 4),
        (4, 8, False, 0),
        (8, 9, True, 4),
    ]
    assert trainer.parts.train_step.observe is observe_nothing


def record_with(slow_steps: Sequence[int]) -> Record:
    """Return a record whose steps took 10 ms each, those that were fingerprinted 1 s."""
    record = make_record()
    marks = [StepFingerprint(step=step, digests={}) for step in slow_steps]
    fingerprints = RankFingerprints(steps=marks, file="", file_digest="")
    ranks = []
    for result in record.ranks:
        assert result.step_seconds is not None
        seconds = np.full(len(result.step_seconds), 0.01)
        seconds[np.asarray(slow_steps) - 1] = 1.0
        series = seconds
        result = replace(result, step_seconds=series, step_phases={"forward": series})
        ranks.append(replace(result, fingerprints=fingerprints))
    cell = record.trial.cell
    assert record.rank0 is not None
    summary = summarize(ranks, record.rank0, cell)
    return with_ranks(record, ranks, summary=summary)


def test_fingerprinted_steps_are_no_part_of_what_is_measured(tmp_path: Path) -> None:
    """Every other one of them, which no median would hide."""
    steps = make_record().trial.cell.length.in_steps(10)
    record = record_with(range(2, steps + 1, 2))
    summary, axes = record.summary, record.trial.cell.axes
    assert summary is not None
    assert summary.throughput == pytest.approx(axes.batch_size / 0.01)
    assert summary.step_p99 == pytest.approx(0.01)
    path = tmp_path / "record.json"
    write_record(path, record)
    assert read_record(path).summary == summary


def test_a_trace_is_lines_of_marks(tmp_path: Path) -> None:
    line = json.dumps([1, 1, "data", "batch[0]", "00"])
    for damaged in ("5", "[]", '[1, 1, 3, "batch[0]", "00"]', "[" * 100_000):
        with pytest.raises(BadInput, match="trace: found no marks of a trace"):
            decode_trace(f"{line}\n{damaged}\n".encode(), "trace")
