"""The table of results, as a reader of the terminal sees it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from rich.console import Console

from harness.analysis.sweep_result import SweepResult
from harness.records.record import Record
from harness.render.console import as_rich
from harness.render.results import result_table
from harness.spec.sweep import Sweep
from tests.factories import make_record
from tests.support.sweeps import load


def rows(sweep: Sweep, records: list[Record]) -> list[list[str]]:
    """Return the words of each row of the table, without its heading."""
    console = Console(width=200)
    with console.capture() as captured:
        console.print(as_rich(result_table(sweep, SweepResult.of_records(sweep, records))))
    return [line.split() for line in captured.get().splitlines()[1:]]


def test_one_trial_has_no_interval_and_several_have_students_interval(tmp_path: Path) -> None:
    sweep = load(tmp_path, length={"steps": 100}, warmup=2, seeds=[0, 1])
    fast, slow = (
        make_record(sweep.cells[0], seed=seed, step_seconds=0.01 * (1 + seed)) for seed in (0, 1)
    )
    assert fast.summary is not None
    assert slow.summary is not None
    (row,) = rows(load(tmp_path, length={"steps": 100}, warmup=2), [fast])
    assert row[2] == f"{fast.summary.throughput:,.0f}"
    (row,) = rows(sweep, [fast, slow])
    fast_rate, slow_rate = fast.summary.throughput or 0.0, slow.summary.throughput or 0.0
    # Two values: the half width is Student's 12.706 times half their distance, on the log scale.
    mean = math.sqrt(fast_rate * slow_rate)
    factor = math.exp(12.706204736 * abs(math.log(fast_rate / slow_rate)) / 2)
    bounds = [f"({mean / factor:,.0f}", "to", f"{mean * factor:,.0f})"]
    assert row[2:6] == [f"{mean:,.0f}", *bounds]
    assert row[-2:] == ["2/2", "done"]


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
