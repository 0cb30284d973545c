"""The folder of a reproduction has the record of every run that a reproduction made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from harness.core.errors import BadInput
from harness.core.paths import Results, SweepFolder
from harness.launch.runner import TrialListener
from harness.records.files import write_record
from harness.records.record import Record
from harness.reproduce import reproduction, rerun
from harness.reproduce.reproduction import ReproductionVerdict, reproduce
from harness.reproduce.rerun import MakeListener, Original, Prepared, recorded_stack, run_again
from harness.reproduce.source import Source
from harness.sweep.cell import Cell, Stack, StopRule
from harness.sweep.cluster import Profile
from harness.sweep.sweep import Sweep
from tests.factories import make_cell, make_record, with_ranks
from tests.launch.test_stack import READY


def with_losses(record: Record, factor: float) -> Record:
    """Return the record of a trial whose losses were others by a factor."""
    ranks = []
    for rank in record.ranks:
        assert rank.loss is not None
        losses = np.asarray(rank.loss, dtype=np.float64) * factor
        ranks.append(replace(rank, loss=losses))
    return with_ranks(record, ranks)


def on_another_torch(record: Record) -> Record:
    """Return the record of a trial whose kernels may round otherwise."""
    assert record.environment is not None
    software = replace(record.environment.software, torch="0.1")
    return replace(record, environment=replace(record.environment, software=software))


@dataclass
class OtherRuns:
    """Takes the place of `run_again`: a run of a trial has other losses each time, on another torch."""

    record: Record
    cells: list[Cell] = field(default_factory=list)  # of all runs

    def __call__(
        self, entries: Sequence[Prepared], results: Results, make_listener: MakeListener
    ) -> dict[str, Record]:
        records = {}
        for entry in entries:
            self.cells.append(entry.trial.cell)
            again = on_another_torch(with_losses(self.record, 1 + 0.1 * len(self.cells)))
            folder = results.sweep_folder(again.sweep).trial_folder(again.trial.id)
            write_record(folder.record_path, again)
            records[entry.original.record.trial.id] = again
        return records


def no_listener(sweep: Sweep) -> AbstractContextManager[TrialListener]:
    raise AssertionError("nothing runs")


def prepare(record: Record, folder: Path) -> Prepared:
    """Return a recorded trial, ready to run again under the same conditions."""
    return Prepared(
        original=Original(record=record, sweep_folder=None),
        trial=record.trial,
        source=Source(choice="here", reason="it is built in"),
        base_folder=folder,
        profile=Profile(),
        stack=None,
    )


def reproduced(
    prepared: Prepared, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ReproductionVerdict, OtherRuns]:
    """Return the verdict on a trial that runs otherwise each time, and the runs that there were."""
    runs = OtherRuns(prepared.original.record)
    monkeypatch.setattr(reproduction, "run_again", runs)
    monkeypatch.setattr(reproduction, "prepare", lambda *_: [prepared])
    originals = [prepared.original]
    verdict = reproduce(
        "demo", originals, None, (), "rounding", folder, no_listener, lambda _: None
    )
    return verdict, runs


def test_the_exact_run_of_a_trial_in_double_precision_replaces_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cell is that of the trial itself, and so is its id."""
    prepared = prepare(make_record(make_cell(precision="fp64")), tmp_path)
    verdict, runs = reproduced(prepared, tmp_path, monkeypatch)
    assert len(runs.cells) == 3
    assert verdict.trials[0].agreement is not None
    assert verdict.trials[0].agreement.fp64_problem == "not deterministic"
    assert len(list(tmp_path.glob("*/runs/demo/*/record.json"))) == 3
    content = json.loads((tmp_path / "verdict.json").read_text(encoding="utf-8"))
    assert content["outcome"] == verdict.outcome == "different"


def test_the_run_in_double_precision_of_a_trial_that_stopped_early_has_no_rule_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own losses, it might stop at another evaluation."""
    prepared = prepare(make_record(make_cell()), tmp_path)
    cell = replace(prepared.trial.cell, stop=StopRule(patience=1))
    prepared = replace(prepared, trial=replace(prepared.trial, cell=cell))
    _, runs = reproduced(prepared, tmp_path, monkeypatch)
    rules = [(cell.axes.precision, cell.stop) for cell in runs.cells]
    assert rules == [("fp32", StopRule(patience=1)), ("fp64", None), ("fp64", None)]


def test_trials_of_several_versions_of_the_code_have_a_sweep_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sweep's file would have the trials of the last version only."""
    prepared = []
    for seed, folder in enumerate(("a", "a", "b")):
        prepared.append(prepare(make_record(make_cell(), seed=seed), tmp_path / folder))
    groups: list[tuple[str, int]] = []

    def run_group(
        group: Sequence[Prepared], name: str, results: Results, make_listener: MakeListener
    ) -> dict[str, Record]:
        groups.append((name, len(group)))
        return {entry.trial.id: entry.original.record for entry in group}

    monkeypatch.setattr(rerun, "_run_group", run_group)
    records = run_again(prepared, Results(tmp_path), no_listener)
    assert groups == [("demo", 2), ("demo-2", 1)]
    assert len(records) == 3


def test_a_stack_that_has_other_packages_by_now_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_record()
    assert record.environment is not None
    environment = replace(record.environment, installed=READY.installed)
    record = replace(record, environment=environment)
    recorded = Original(record=record, sweep_folder=SweepFolder(tmp_path))
    cell = replace(make_cell(), stack=Stack(python=READY.python))
    assert recorded_stack(recorded, make_cell(), tmp_path) is None
    monkeypatch.setattr(rerun, "ready_stack", lambda *_: READY)
    assert recorded_stack(recorded, cell, tmp_path) is READY
    upgraded = replace(READY, packages={**READY.packages, "torch": "2.12.0"})
    monkeypatch.setattr(rerun, "ready_stack", lambda *_: upgraded)
    with pytest.raises(BadInput, match=r"stack old at .*: found other packages; .*/environments/"):
        recorded_stack(recorded, cell, tmp_path)
