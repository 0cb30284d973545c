"""The table of results, as a reader of the terminal sees it."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean, stdev

import pytest
from rich.console import Console

from harness.analysis.sweep_result import SweepResult
from harness.records.record import Record
from harness.render.console import TerminalConsole, as_rich, fits, narrowed, show_table
from harness.render.format import cell_names
from harness.render.results import narrow_table, result_table
from harness.render.table import Table
from harness.spec.sweep import Sweep
from tests.factories import make_record
from tests.support.sweeps import load


def rows(sweep: Sweep, records: list[Record]) -> list[list[str]]:
    """Return the words of each row of the table, without its heading."""
    console = Console(width=200)
    with console.capture() as captured:
        console.print(as_rich(result_table(sweep, SweepResult.of_records(sweep, records))))
    return [line.split() for line in captured.get().splitlines()[1:]]


def test_three_trials_have_students_interval_and_fewer_have_none(tmp_path: Path) -> None:
    sweep = load(tmp_path, length={"steps": 100}, warmup=2, seeds=[0, 1, 2])
    records = []
    for seed in (0, 1, 2):
        records.append(make_record(sweep.cells[0], seed=seed, step_seconds=0.01 * 2**seed))
    logs = [math.log(record.summary.throughput or 0.0) for record in records if record.summary]
    for count in (1, 2):
        (row,) = rows(sweep, records[:count])
        assert row[2] == f"{math.exp(sum(logs[:count]) / count):,.0f}"
        assert "to" not in row
    (row,) = rows(sweep, records)
    # Of three values, the half width is Student's 4.303 times their deviation over sqrt(3).
    factor = math.exp(4.302652730 * stdev(logs) / math.sqrt(3))
    mean = math.exp(fmean(logs))
    bounds = [f"({mean / factor:,.0f}", "to", f"{mean * factor:,.0f})"]
    assert row[2:6] == [f"{mean:,.0f}", *bounds]
    assert row[-2:] == ["3/3", "done"]


def test_a_wide_table_names_cells_instead_of_their_ids_and_axes(tmp_path: Path) -> None:
    matrix = {
        "precision": ["fp32", "bf16"],
        "execution": ["eager", "compile:max-autotune"],
        "deterministic": [False, True],
        "grad_accum_steps": [1, 2],
        "num_workers": [0, 2],
    }
    sweep = load(tmp_path, length={"steps": 100}, warmup=2, matrix=matrix)
    result = SweepResult.of_records(sweep, [make_record(cell) for cell in sweep.cells])
    whole = result_table(sweep, result)
    assert not fits(whole)
    table = narrow_table(whole, result, cell_names(sweep.cells))
    assert table.columns[:2] == ["workload", "cell"]
    console = TerminalConsole(width=200)
    with console.capture() as captured:
        show_table(console, table)
    shown = captured.get()
    assert all(len(line) <= 100 for line in shown.splitlines())


def test_columns_are_left_out_in_their_order_until_a_table_fits() -> None:
    table = Table(["name", "long", "longer"], ["long"])
    table.add_row("a", "b" * 60, "c" * 70)
    assert narrowed(table, ["absent", "long", "longer"]).columns == ["name", "longer"]
    assert table.columns == ["name", "long", "longer"]


@pytest.mark.parametrize(
    ("step_seconds", "mark"),
    [([0.010, 0.0101, 0.0099], "★"), ([0.010, 0.030, 0.015], "☆")],
    ids=["certain", "open"],
)
def test_star_is_for_a_certain_winner_only(
    tmp_path: Path, step_seconds: list[float], mark: str
) -> None:
    sweep = load(
        tmp_path,
        length={"steps": 100},
        warmup=2,
        matrix={"precision": ["fp32", "bf16"]},
        seeds=[0, 1, 2],
    )
    fast, slow = sweep.cells
    records = []
    for seed, seconds in enumerate(step_seconds):
        records.append(make_record(fast, seed=seed, step_seconds=seconds, started=200.0 * seed))
        later = 200.0 * seed + 100
        records.append(make_record(slow, seed=seed, step_seconds=0.02, started=later))
    shown = rows(sweep, records)
    assert mark in shown[0]
    assert "★" not in shown[1]
    assert SweepResult.of_records(sweep, records).is_winner_certain("mlp") == (mark == "★")


def test_trials_that_stopped_have_their_epochs_beside_the_metric(tmp_path: Path) -> None:
    sweep = load(
        tmp_path,
        {"mlp": {"data": {"source": "digits", "validation": 0.1}}},
        length={"steps": 100},
        stop={"patience": 2},
    )
    (row,) = rows(sweep, [make_record(sweep.cells[0])])
    assert row[-4:] == ["5", "5", "1/1", "done"]


def test_invalid_trials_are_counted_and_left_out_of_means(tmp_path: Path) -> None:
    sweep = load(tmp_path, length={"steps": 100}, warmup=2, seeds=[0, 1])
    good = make_record(sweep.cells[0], seed=0)
    bad = make_record(
        sweep.cells[0], seed=1, status="invalid", invalid=["steal: a lot"], step_seconds=1.0
    )
    (row,) = rows(sweep, [good, bad])
    assert good.summary is not None
    assert row[2] == f"{good.summary.throughput:,.0f}"
    assert row[-2:] == ["1/2", "invalid"]
