"""A cell that has left a race is shown as such everywhere, and nowhere with a result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.analysis.result import LEFT_RACE
from harness.analysis.selection import find
from harness.analysis.sweep_result import SweepResult
from harness.core.paths import Results
from harness.interface.history import read_trend
from harness.launch.race import SweepRace
from harness.records.record import Record
from harness.records.store import write_spec
from harness.render.findings import conclusions, findings, race_sentences
from harness.render.html.page import render
from harness.render.html.report import make_report
from harness.render.pivot import ratio_table
from harness.render.results import result_table
from harness.render.table import Styled
from harness.slurm.status import read_statuses
from harness.spec.cell import Cell
from harness.spec.sweep import Sweep
from harness.tracking import Tracker
from harness.tracking.contents import TrialOutline, cell_contents, is_complete, result_of
from harness.tracking.runs import without_skipped
from tests.factories import write_trial
from tests.support.commands import harness
from tests.support.races import race_sweep, speed_record

DECIDED = {16: 1000.0, 64: 5000.0, 256: 3000.0}  # samples/s of which one is certainly the highest


def raced(folder: Path, speeds: dict[int, float]) -> tuple[Sweep, list[Record]]:
    """Return a sweep and the records that its race has left in a results folder."""
    sweep = race_sweep(folder)
    records: dict[str, Record] = {}
    race = SweepRace(sweep)
    for trial in sweep.trials():
        race.advance(lambda other: records.get(other.id))
        if race.reason_to_skip(trial) is None:
            records[trial.id] = speed_record(trial, speeds)
    sweep_folder = Results(folder).sweep_folder(sweep.name)
    sweep_folder.path.mkdir(parents=True)
    for record in records.values():
        write_trial(sweep_folder, record)
    write_spec(sweep, sweep_folder)
    return sweep, list(records.values())


@pytest.fixture
def decided(tmp_path: Path) -> tuple[Sweep, list[Record]]:
    return raced(tmp_path, DECIDED)


def name(cell: Cell) -> str:
    return f"b{cell.axes.batch_size}"


def texts(cells: Sequence[object]) -> list[str]:
    return [cell.text if isinstance(cell, Styled) else str(cell) for cell in cells]


def test_who_has_left_has_no_numbers(decided: tuple[Sweep, list[Record]]) -> None:
    sweep, records = decided
    result = SweepResult.of_records(sweep, records)
    slow, fast, middle = result.cells
    assert fast.throughput is not None
    for cell_result in (slow, middle):
        assert (cell_result.throughput, cell_result.metric) == (None, None)
        assert cell_result.status == LEFT_RACE
        assert cell_result.cell.id not in result.records
    assert result.is_winner_certain("mlp")
    assert (result.comparison, result.attributions) == (None, {})
    rows = [texts(row) for row in result_table(sweep, result).rows]
    departure = result.departure(slow.cell)
    assert rows[0][-1] == str(departure)
    assert rows[0][-2].strip() == "–"
    assert rows[1][-1] == f"{len(fast.trials)}/{len(fast.trials)} done"  # it needs no more
    assert texts(ratio_table(sweep, result, ["batch_size"]).rows[0])[1:] == ["–", "–"]


def test_what_was_decided_is_said(decided: tuple[Sweep, list[Record]]) -> None:
    sweep, records = decided
    result = SweepResult.of_records(sweep, records)
    blocks = result.races["mlp"].judged
    assert conclusions(result, name)[0].startswith("b64 is left, with ")
    decided_line, saved_line = race_sentences(result, sweep, records, name)
    assert decided_line == (
        f"The race of mlp was decided after {blocks} blocks: b64 is the fastest, certain at 95%;"
        " 2 of 3 cells have left."
    )
    assert saved_line.startswith(f"{24 - len(records)} of 24 trials were not needed, which saved ")
    (finding,) = findings(result, name)
    assert finding.is_certain is True


def test_what_is_not_decided_is_said(tmp_path: Path) -> None:
    sweep, records = raced(tmp_path, {16: 1000.0, 64: 5000.0, 256: 5000.0})
    result = SweepResult.of_records(sweep, records)
    assert not result.is_winner_certain("mlp")
    line, _ = race_sentences(result, sweep, records, name)
    assert line == (
        "The race of mlp is not decided after 8 blocks: 1 of 3 cells have left, and b64, b256 may be"
        " the fastest."
    )


def test_status_says_which_trials_are_not_needed(
    tmp_path: Path, decided: tuple[Sweep, list[Record]]
) -> None:
    sweep, records = decided
    (status,) = read_statuses([(sweep, Results(tmp_path).sweep_folder(sweep.name))])
    states = [trial.state for trial in status.trials]
    assert states.count("done") == len(records)
    assert states.count("skipped") == 24 - len(records)
    assert status.is_over
    slow = [trial for trial in status.trials if " b16 " in trial.label and trial.state == "skipped"]
    assert "another cell is certainly faster" in slow[0].detail
    assert slow[0].detail.startswith("left after ")


def test_compare_has_no_numbers_of_it(tmp_path: Path, decided: tuple[Sweep, list[Record]]) -> None:
    sweep, _ = decided
    slow = sweep.cells[0]
    for written in (sweep.name, slow.id, f"{sweep.name}/{slow.id}"):
        results = {cell.cell.id: cell for cell in find(Results(tmp_path), written).cells}
        assert results[slow.id].throughput is None
        assert results[slow.id].describe_left_out().endswith(LEFT_RACE)


def test_the_report_says_when_it_left(tmp_path: Path, decided: tuple[Sweep, list[Record]]) -> None:
    sweep, records = decided
    departure = SweepRace.of_records(sweep, records).departure(sweep.cells[0])
    page = render(make_report(Results(tmp_path), sweep, records, None))
    assert str(departure) in page
    assert "The race of mlp was decided after" in page


def test_a_part_of_a_race_is_refused_except_as_a_table(
    tmp_path: Path, decided: tuple[Sweep, list[Record]]
) -> None:
    sweep, records = decided
    part = [sweep.name, "--results", str(tmp_path), "--cell", "batch_size=16"]
    for view in ([], ["--phases"], ["--pivot", "batch_size"]):
        ended = harness("show", *part, *view)
        assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
        assert "race: found with --only or --cell, which leave out trials" in ended.err
    table = harness("show", *part, "--format", "csv")
    assert table.code == 0
    slow = [record for record in records if record.trial.cell == sweep.cells[0]]
    assert len(table.out.splitlines()) == 1 + len(slow)


def test_a_history_has_no_point_of_it(tmp_path: Path, decided: tuple[Sweep, list[Record]]) -> None:
    sweep, records = decided
    trend = read_trend(Results(tmp_path), sweep.name, [], control="", min_effect=0.01)
    assert [series.points[0].result.cell.id for series in trend.series] == [sweep.cells[1].id]
    race = SweepRace.of_records(sweep, records)
    left = len(records) - len(race.records_in(records))
    assert f"left out {left} trials of cells that have left a race" in trend.notes


def test_mlflow_gives_no_numbers_of_it(tmp_path: Path, decided: tuple[Sweep, list[Record]]) -> None:
    """What is recalled of it is what the disk has."""
    sweep, records = decided
    results, elsewhere = Results(tmp_path), Results(tmp_path / "elsewhere")
    tracker = Tracker(results)
    run = tracker.deliver(results.sweep_folder(sweep.name)).run_id
    on_disk = find(results, str(results.sweep_folder(sweep.name).path)).cells
    recalled = find(elsewhere, run, tracker.recall).cells
    for cell_results in (on_disk, recalled):
        measured = [result.cell.id for result in cell_results if result.throughput is not None]
        assert measured == [sweep.cells[1].id]
    assert len(recalled) == len(on_disk)
    trend = read_trend(elsewhere, sweep.name, [], control="", min_effect=0.01, mlflow=tracker.uri)
    assert [series.points[0].result.cell.id for series in trend.series] == [sweep.cells[1].id]
    left = sum(record.trial.cell.id != sweep.cells[1].id for record in records)
    assert trend.notes == [f"left out {left} trials of cells that have left a race"]


def test_mlflow_shows_no_means_of_it(decided: tuple[Sweep, list[Record]]) -> None:
    sweep, records = decided
    outlines = [TrialOutline.of(record, "") for record in records]
    planned = [trial.id for trial in sweep.trials()]
    spec = {"trials": planned, "cells": list(sweep.cells)}
    race = SweepRace.of_records(sweep, records)
    assert not is_complete(outlines, planned)
    needed = without_skipped(spec, race, outlines)["trials"]
    assert is_complete(outlines, needed)
    result = result_of(sweep.name, {**spec, "trials": needed}, outlines, race)
    assert result is not None
    assert result.is_winner_certain("mlp")
    slow = sweep.cells[0]
    contents = cell_contents(
        [outline for outline in outlines if outline.cell_id == slow.id],
        planned=needed,
        result=result,
        departure=race.departure(slow),
    )
    assert contents.tags["harness.race"] == str(race.departure(slow))
    assert {metric.key.partition("_")[0] for metric in contents.metrics} == {"trials"}
