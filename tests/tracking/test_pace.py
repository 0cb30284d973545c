"""How often a running sweep delivers, and what is remembered between its deliveries."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from harness.core.paths import Results
from harness.records.record import Record
from harness.tracking import Tracker, runs
from harness.tracking.connect import connect, quiet
from harness.tracking.pace import Pace
from tests.factories import make_cell, make_record, write_sweep, write_trial
from tests.support.mlflow import by_label

if TYPE_CHECKING:
    from mlflow.entities import Run


def test_deliveries_take_a_bounded_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pace = Pace(0.05, min_seconds=5.0, max_seconds=60.0)
    assert pace.is_due()
    for seconds, wait in ((0.01, 5.0), (0.4, 8.0), (100.0, 60.0)):
        pace.add(seconds)
        now += wait - 0.1
        assert not pace.is_due()
        now += 0.1
        assert pace.is_due()


def later_records() -> list[Record]:
    """Return a trial of each of two cells, for each of three seeds."""
    records: list[Record] = []
    for seed in range(3):
        for batch_size in (64, 128):
            started = 1.7e9 + 100 * len(records)
            record = make_record(make_cell(batch_size=batch_size), seed=seed, started=started)
            records.append(record)
    return records


def test_what_mlflow_has_is_asked_once_and_again_where_somebody_changed_it(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[str] = []
    search = runs.search

    def counted_search(*arguments: Any) -> Any:
        searches.append(arguments[-1])
        return search(*arguments)

    monkeypatch.setattr(runs, "search", counted_search)
    folder = results.sweep_folder("demo")
    records = later_records()
    write_sweep(folder, records[:1], planned=[record.trial for record in records[1:]])
    tracker, other = Tracker(results), Tracker(results)

    def deliver(*numbers: int, by: Tracker = tracker) -> int:
        """Deliver records by their numbers, and return how many searches that took."""
        searches.clear()
        for number in numbers:
            write_trial(folder, records[number])
        by.deliver(folder, [records[number].trial.id for number in numbers])
        return len(searches)

    assert deliver(0) == 0  # the experiment is new
    assert deliver(1) == 0
    assert deliver(2, by=other) == 2  # the sweep's run and those of a cell
    assert deliver(2, 3) == 3
    assert deliver(3) == 0
    cell_name = records[0].trial.cell.label
    with quiet():
        connect(tracker.uri).delete_run(by_label(tracker.uri, "demo")[cell_name].info.run_id)
    assert deliver(4) == 2
    assert deliver(5) == 1  # the verdicts are on all cells
    shown = by_label(tracker.uri, "demo")
    assert len(shown) == 1 + 2 + 6
    parents = {run.data.tags.get("mlflow.parentRunId") for run in shown.values()}
    assert parents == {None, shown["demo"].info.run_id, *(
        shown[record.trial.cell.label].info.run_id for record in records[:2]
    )}  # fmt: skip


def test_cells_follow_at_their_own_pace_until_a_delivery_that_is_not_in_passing(
    results: Results,
) -> None:
    """A trial's run is there at once, below its cell's, whose means wait."""
    folder = results.sweep_folder("demo")
    records = later_records()
    later = make_record(make_cell(batch_size=256), seed=0)
    write_sweep(folder, records[:2], planned=[record.trial for record in [*records[2:], later]])
    tracker = Tracker(results)

    def trials_done(*numbers: int, in_passing: bool = True) -> list[float]:
        """Deliver records by their numbers; return how many trials the runs of two cells show."""
        for number in numbers:
            write_trial(folder, records[number])
        tracker.deliver(
            folder, [records[number].trial.id for number in numbers], in_passing=in_passing
        )
        shown = by_label(tracker.uri, "demo")
        assert len(shown) == 1 + 2 + len(folder.recorded_ids())
        cells = [shown[record.trial.cell.label] for record in records[:2]]
        return [cell.data.metrics["trials_done"] for cell in cells]

    assert trials_done(0, 1) == [1, 1]  # their runs are new
    (known,) = tracker._known.values()
    known.pace_of_cells.due = float("inf")
    assert trials_done(2, 3) == [1, 1]
    assert trials_done(4) == [1, 1]
    known.pace_of_cells.due = 0.0
    assert trials_done(5) == [3, 3]  # both, and not only that of the last trial
    known.pace_of_cells.due = float("inf")
    records[0] = make_record(records[0].trial.cell, seed=7, started=1.8e9)
    assert trials_done(0) == [3, 3]
    assert trials_done(5, in_passing=False) == [4, 3]


def shows(run: Run, record: Record) -> bool:
    """Return whether a run is that of the record's trial."""
    return run.data.tags.get("harness.trial") == record.trial.id


def test_the_run_of_a_new_cell_is_created_at_once_and_filled_at_that_pace(results: Results) -> None:
    folder = results.sweep_folder("demo")
    records = later_records()
    write_sweep(folder, records[:1], planned=[record.trial for record in records[1:]])
    tracker = Tracker(results)
    tracker.deliver(folder, [records[0].trial.id], in_passing=True)
    (known,) = tracker._known.values()
    known.pace_of_cells.due = float("inf")
    for record in records[1:]:
        write_trial(folder, record)
        tracker.deliver(folder, [record.trial.id], in_passing=record is not records[-1])
        shown = by_label(tracker.uri, "demo")
        cell = shown[record.trial.cell.label]
        (trial,) = [run for run in shown.values() if shows(run, record)]
        assert trial.data.tags["mlflow.parentRunId"] == cell.info.run_id
        if record is records[1]:
            assert cell.data.metrics == {}
    assert cell.data.metrics["trials_done"] == 3
    assert cell.data.params["batch_size"] == "128"
    assert [name for name, run in shown.items() if run.info.status != "FINISHED"] == []
