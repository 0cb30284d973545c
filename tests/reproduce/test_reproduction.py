"""A bundle has the record of every run that a reproduction made."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.evidence import evidence_of_record
from harness.core.paths import Results
from harness.launch.runner import TrialListener
from harness.records.across import in_memory_ranks
from harness.records.files import write_record
from harness.records.record import Record
from harness.records.series import Series
from harness.reproduce import bundle, reproduction
from harness.reproduce.reproduction import Demand, Subject, reproduce
from harness.reproduce.rerun import MakeListener, Options, Original, Prepared, Preparer
from harness.reproduce.source import CheckedOut
from harness.spec.cell import Cell, StopRule
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep
from tests.factories import make_cell, make_record


def with_losses(record: Record, factor: float) -> Record:
    """Return the record of a trial whose losses were others by a factor."""
    ranks = []
    for rank in record.ranks:
        assert rank.loss is not None
        losses = np.asarray(rank.loss.unpack(), dtype=np.float64) * factor
        ranks.append(replace(rank, loss=Series.pack(losses)))
    return replace(record, ranks=in_memory_ranks(ranks))


def no_listener(sweep: Sweep) -> AbstractContextManager[TrialListener]:
    raise AssertionError("nothing runs")


def prepare(record: Record, folder: Path) -> Prepared:
    """Return a recorded trial, ready to run again under the same conditions."""
    original = Original(
        trial=record.trial,
        evidence=evidence_of_record(record),
        target=None,
        sweep=record.sweep,
        record=record,
    )
    return Prepared(
        original=original,
        trial=record.trial,
        sources={},
        checked_out=CheckedOut(base_folder=folder, python_path=None),
        profile=Profile(),
        differences=[],
        stack=None,
    )


def test_the_exact_run_of_a_trial_in_double_precision_replaces_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cell is that of the trial itself, and so is its id."""
    record = make_record(make_cell(precision="fp64"))
    prepared = prepare(record, tmp_path)
    runs: list[Record] = []  # each with other numbers, as the trial is not deterministic

    def run_again(
        entries: Sequence[Prepared], results: Results, make_listener: MakeListener
    ) -> dict[str, Record]:
        records: dict[str, Record] = {}
        for entry in entries:
            again = with_losses(record, 1 + 0.1 * (len(runs) + 1))
            runs.append(again)
            folder = results.sweep_folder(again.sweep).trial_folder(again.trial.id)
            write_record(folder.record_path, again)
            records[entry.original.trial.id] = again
        return records

    monkeypatch.setattr(reproduction, "run_again", run_again)
    monkeypatch.setattr(Preparer, "prepare", lambda *_: prepared)
    subject = Subject(name="demo", originals=[prepared.original], commands=[])
    verdict = reproduce(subject, Options(), Demand(), tmp_path, no_listener, lambda _: None)
    assert len(runs) == 3
    bundle.write_verdict(tmp_path, verdict, "not reproduced\n")
    bundle.seal_bundle(tmp_path)
    checked = bundle.check(tmp_path)
    assert checked.outcome == verdict.outcome
    assert len(list(tmp_path.glob("*/runs/demo/*/record.json"))) == 3


def test_seeds_that_ran_again_with_different_code_are_judged_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorded code of seed 1 is unavailable, and that here is another."""
    cell = make_cell()
    workload = replace(cell.workload, identity={**cell.workload.identity, "files": {"m.py": "b"}})
    edited = replace(cell, workload=workload)
    prepared = [prepare(make_record(cell, seed=seed), tmp_path) for seed in (0, 1)]
    by_id = {entry.original.trial.id: entry for entry in prepared}
    again = [make_record(cell, seed=0), with_losses(make_record(edited, seed=1), 1.1)]
    records = dict(zip(by_id, again, strict=True))

    def run_again(
        entries: Sequence[Prepared], results: Results, make_listener: MakeListener
    ) -> dict[str, Record]:
        return {entry.original.trial.id: records[entry.original.trial.id] for entry in entries}

    monkeypatch.setattr(reproduction, "run_again", run_again)
    monkeypatch.setattr(Preparer, "prepare", lambda self, original: by_id[original.trial.id])
    originals = [entry.original for entry in prepared]
    subject = Subject(name="demo", originals=originals, commands=[])
    demand = Demand(rung="equivalent")
    verdict = reproduce(subject, Options(), demand, tmp_path, no_listener, lambda _: None)
    assert [trial.outcome for trial in verdict.trials] == ["repeated", "inconclusive"]
    assert (verdict.outcome, verdict.seeds) == ("inconclusive", [])
    assert verdict.trials[1].cause is not None
    assert "m.py" in verdict.trials[1].cause.field


def test_the_run_in_double_precision_of_a_trial_that_stopped_early_has_no_rule_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own losses, it might stop at another evaluation."""
    record = make_record(make_cell())
    prepared = prepare(record, tmp_path)
    cell = replace(record.trial.cell, stop=StopRule(patience=1))
    prepared = replace(prepared, trial=replace(prepared.trial, cell=cell))
    ran: list[Cell] = []

    def run_again(
        entries: Sequence[Prepared], results: Results, make_listener: MakeListener
    ) -> dict[str, Record]:
        ran.extend(entry.trial.cell for entry in entries)
        again = with_losses(record, 1 + 0.1 * len(ran))
        return {entry.original.trial.id: again for entry in entries}

    monkeypatch.setattr(reproduction, "run_again", run_again)
    monkeypatch.setattr(Preparer, "prepare", lambda *_: prepared)
    subject = Subject(name="demo", originals=[prepared.original], commands=[])
    reproduce(subject, Options(), Demand(), tmp_path, no_listener, lambda _: None)
    rules = [(cell.axes.precision, cell.stop) for cell in ran]
    assert rules == [("fp32", StopRule(patience=1)), ("fp64", None), ("fp64", None)]
