"""Records bound the first step that differs, and name it where fingerprints are close enough."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core.errors import BadFile
from harness.measure.summary import summarize
from harness.records.across import in_memory_ranks
from harness.records.files import write_record
from harness.records.record import (
    Evaluation,
    RankFingerprints,
    Record,
    StepFingerprint,
)
from harness.records.series import Series
from harness.records.trace import PHASES, Mark, combine, encode, phase_digests
from harness.reproduce.recorded import RecordedTrial, find_bounds, unlike_record
from tests.factories import make_cell, make_record
from tests.support.commands import harness

STEPS = make_record().trial.cell.length.in_steps(10)
CHOSEN = (1, 2, 10, STEPS)
Changes = Mapping[tuple[int, str], str]  # (step, phase) -> what its digests are instead


def recorded(
    folder: Path, changes: Changes | None = None, *, world_size: int = 2, with_file: bool = True
) -> RecordedTrial:
    """Return a trial with fingerprints, the last rank's changed in some phases."""
    folder.mkdir()
    strategy = "ddp" if world_size > 1 else "single"
    record = make_record(make_cell(strategy=strategy, world_size=world_size))
    ranks = []
    for result in record.ranks:
        is_changed = result.rank == world_size - 1
        marks = marks_of((changes or {}) if is_changed else {})
        content = "".join(encode(mark) for mark in marks).encode()
        path = folder / f"rank{result.rank}.jsonl"
        if with_file:
            path.write_bytes(content)
        fingerprints = RankFingerprints(
            steps=fingerprints_of(marks),
            file=path.name,
            file_digest=hashlib.sha256(content).hexdigest(),
        )
        ranks.append(replace(result, fingerprints=fingerprints))
    axes = record.trial.cell.axes
    assert record.rank0 is not None
    summary = summarize(ranks, record.rank0, axes.batch_size, record.trial.cell.warmup)
    return RecordedTrial(
        record=replace(record, ranks=in_memory_ranks(ranks), summary=summary), folder=folder
    )


def marks_of(changes: Changes) -> list[Mark]:
    """Return a mark for two tensors in each phase of the chosen steps."""
    marks = []
    for step in CHOSEN:
        for phase in PHASES[:-1]:
            for name in ("bias", "weight"):
                digest = changes.get((step, phase), "same")
                marks.append(Mark(step=step, micro_step=1, phase=phase, name=name, digest=digest))
    return marks


def combined(marks: Sequence[Mark]) -> list[Mark]:
    """Return one mark a moment, as a run without marks of single tensors has."""
    moments: dict[tuple[int, int, int], list[Mark]] = {}
    for mark in marks:
        moments.setdefault(mark.moment, []).append(mark)
    together = []
    for group in moments.values():
        name, digest = combine([(mark.name, mark.digest) for mark in group])
        together.append(replace(group[0], name=name, digest=digest))
    return together


def fingerprints_of(marks: Sequence[Mark]) -> list[StepFingerprint]:
    digests: dict[int, dict[str, str]] = {}
    for (step, phase), digest in phase_digests(combined(marks)).items():
        digests.setdefault(step, {})[phase] = digest
    return [StepFingerprint(step=step, digests=phases) for step, phases in digests.items()]


def with_record(trial: RecordedTrial, **changes: Any) -> RecordedTrial:
    return replace(trial, record=replace(trial.record, **changes))


def changed_loss(record: Record, step: int) -> Record:
    """Return the record with another loss of rank 0 at one step."""
    first, *others = record.ranks
    assert first.loss is not None
    losses = first.loss.unpack().copy()
    losses[step - 1] = np.nextafter(losses[step - 1], np.inf)
    return replace(
        record, ranks=in_memory_ranks([replace(first, loss=Series.pack(losses)), *others])
    )


def test_equal_records_are_the_same_up_to_the_end(tmp_path: Path) -> None:
    bounds = find_bounds(recorded(tmp_path / "a"), recorded(tmp_path / "b"))
    assert (bounds.first_differing, bounds.equal_up_to, bounds.is_exact) == (None, STEPS, False)


@pytest.mark.parametrize("with_file", [True, False])
@pytest.mark.parametrize(
    ("step", "equal_up_to", "is_exact"), [(1, 0, True), (2, 1, True), (10, 2, False)]
)
def test_a_step_is_named_if_the_one_before_was_fingerprinted(
    tmp_path: Path, step: int, equal_up_to: int, is_exact: bool, with_file: bool
) -> None:
    a = recorded(tmp_path / "a")
    b = recorded(tmp_path / "b", {(step, "data"): "other"}, with_file=with_file)
    bounds = find_bounds(a, b)
    divergence = bounds.comparison.divergence
    assert divergence is not None
    assert (divergence.earliest.mark.step, divergence.earliest.mark.phase) == (step, "data")
    assert divergence.ranks == [1]
    names = {entry.mark.name for entry in divergence.together}
    assert names == ({"bias", "weight"} if with_file else {"all tensors"})
    assert (bounds.equal_up_to, bounds.is_exact) == (equal_up_to, is_exact)


def test_losses_of_all_steps_bound_the_first_that_differs(tmp_path: Path) -> None:
    a, b = recorded(tmp_path / "a"), recorded(tmp_path / "b")
    bounds = find_bounds(a, replace(b, record=changed_loss(b.record, 7)))
    assert (bounds.equal_up_to, bounds.first_differing, bounds.is_exact) == (2, 7, False)
    # Step 3 follows a fingerprint, but a loss alone does not say what made it another.
    bounds = find_bounds(a, replace(b, record=changed_loss(b.record, 3)))
    assert (bounds.equal_up_to, bounds.first_differing, bounds.is_exact) == (2, 3, False)


def test_an_evaluation_after_a_step_that_is_the_same_is_named(tmp_path: Path) -> None:
    a, b = recorded(tmp_path / "a"), recorded(tmp_path / "b")
    evaluations = {}
    for trial, value in ((a, 0.5), (b, 0.25)):
        assert trial.record.rank0 is not None
        evaluation = Evaluation(
            step=10, epoch=1.0, metrics={"accuracy": value}, seconds=0.0, started_at=1.7e9
        )
        evaluations[value] = replace(trial.record.rank0, evaluations=(evaluation,))
    bounds = find_bounds(
        with_record(a, rank0=evaluations[0.5]), with_record(b, rank0=evaluations[0.25])
    )
    assert (bounds.equal_up_to, bounds.first_differing, bounds.is_exact) == (10, 10, True)


def test_without_fingerprints_the_end_and_the_order_say_that_trials_differ(tmp_path: Path) -> None:
    record = make_record()
    a = RecordedTrial(record=record, folder=tmp_path)
    assert find_bounds(a, a).first_differing is None
    other_order = with_record(a, order_digest="0" * 32)
    bounds = find_bounds(a, other_order)
    assert (bounds.equal_up_to, bounds.first_differing, bounds.is_exact) == (0, STEPS, False)


def test_another_number_of_ranks_is_compared_in_what_is_the_whole_trials(tmp_path: Path) -> None:
    a = recorded(tmp_path / "a", world_size=1)
    b = recorded(tmp_path / "b", {(2, "data"): "other"}, world_size=2)
    assert find_bounds(a, b).first_differing is None


def test_a_changed_file_of_fingerprints_is_refused(tmp_path: Path) -> None:
    a, b = recorded(tmp_path / "a"), recorded(tmp_path / "b")
    path = b.folder / "rank1.jsonl"
    path.write_text(path.read_text().replace("same", "some", 1))
    with pytest.raises(BadFile, match=r"rank1\.jsonl: found the SHA-256 .* changed after"):
        find_bounds(a, b)


def test_a_run_that_does_not_repeat_its_record_is_named(tmp_path: Path) -> None:
    trial = recorded(tmp_path / "a")
    assert unlike_record(trial, [combined(marks_of({}))] * 2) is None
    up_to_2 = [mark for mark in combined(marks_of({})) if mark.step <= 2]
    assert unlike_record(trial, [up_to_2] * 2) is None
    other = combined(marks_of({(2, "random"): "other", (10, "data"): "other"}))
    assert unlike_record(trial, [up_to_2, other]) == (2, "random")


def test_the_command_compares_records_without_running_them(tmp_path: Path) -> None:
    record_path = {}
    for name, changes in {"a": None, "b": {(2, "data"): "other"}}.items():
        trial = recorded(tmp_path / name, changes)
        record_path[name] = str(trial.folder / "record.json")
        write_record(trial.folder / "record.json", trial.record)
    result = harness("diff", record_path["a"], str(tmp_path / "a"))
    assert result.code == 0, result.err
    assert "same in their records: " in result.out
    result = harness("diff", record_path["a"], record_path["b"])
    assert result.code == 1, result.err
    assert "they diverge in step 2, data, at rank 1: the samples are the same" in result.out
    assert "tensors: bias, weight" in result.out
    result = harness("diff", record_path["a"], record_path["b"], "--json")
    content = json.loads(result.out)
    assert (content["recorded"]["equal_up_to"], content["again"]) == (1, None)
    result = harness("diff", record_path["a"], record_path["b"], "--seed", "1")
    assert result.code == 2
    assert "found with trials on record" in result.err
    result = harness("diff", record_path["a"], str(tmp_path / "c"))
    assert result.code == 2
