"""The table of results, as a reader of the terminal sees it."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean, stdev

from harness.analysis.sweep_result import SweepResult, scaling_shares
from harness.records.numbers import RATE
from harness.records.record import Record
from harness.statistics.attribution import Attribution
from harness.sweep.sweep import Sweep
from harness.view.compare import effects_view
from harness.view.sweep import cells_table
from tests.factories import make_cell, make_record
from tests.support.results import make_result
from tests.support.sweeps import load


def rows(sweep: Sweep, records: list[Record]) -> list[list[str]]:
    """Return the words of each row of the table, without its heading."""
    result = SweepResult.of_records(sweep, records)
    rows = cells_table(result, "mlp").drawn()
    return [" ".join(field.text for field in row).split() for row in rows]


def test_three_trials_have_students_interval_and_fewer_have_none(tmp_path: Path) -> None:
    sweep = load(tmp_path, length={"steps": 100}, warmup=2, seeds=[0, 1, 2])
    records = []
    for seed in (0, 1, 2):
        records.append(make_record(sweep.cells[0], seed=seed, step_seconds=0.01 * 2**seed))
    logs = [math.log(record.numbers[RATE]) for record in records]
    label = len(sweep.cells[0].label.split())
    for count in (1, 2):
        (row,) = rows(sweep, records[:count])
        assert row[label] == f"{math.exp(sum(logs[:count]) / count):,.0f}"
        assert "to" not in row
    (row,) = rows(sweep, records)
    # Of three values, the half width is Student's 4.303 times their deviation over sqrt(3).
    factor = math.exp(4.302652730 * stdev(logs) / math.sqrt(3))
    mean = math.exp(fmean(logs))
    bounds = [f"({mean / factor:,.0f}", "to", f"{mean * factor:,.0f})"]
    assert row[label : label + 4] == [f"{mean:,.0f}", *bounds]


def test_trials_that_stopped_have_their_epochs(tmp_path: Path) -> None:
    workloads = {"mlp": {"data": {"source": "digits", "validation": 0.1}}}
    sweep = load(tmp_path, workloads, length={"steps": 100}, stop={"patience": 2})
    (row,) = rows(sweep, [make_record(sweep.cells[0])])
    assert row[-2:] == ["5", "5"]


def test_scaling_is_against_the_same_strategy() -> None:
    """Not against whichever cell has the fewest ranks."""
    cells = []
    for strategy, speeds in {"ddp": (100.0, 200.0), "fsdp2": (50.0, 99.0)}.items():
        for ranks, speed in zip((2, 4), speeds, strict=True):
            cell = make_cell(strategy=strategy, world_size=ranks)
            cells.append(make_result([speed], cell=cell))
    shares = scaling_shares(cells)
    assert [round(shares.get(cell.cell.id, 0.0), 3) for cell in cells] == [0, 1.0, 0, 0.99]
    single = make_result([60.0], cell=make_cell())
    shares = scaling_shares([single, *cells])
    assert round(shares[cells[3].cell.id], 4) == round(99 / 60 / 4, 4)


def test_what_cannot_be_separated_is_named_with_its_workload() -> None:
    terms = [("world_size",), ("execution", "strategy")]
    attribution = Attribution(effects=[], unknown=terms, deviation=0.0, degrees_of_freedom=1)
    first, second, _ = effects_view({"mlp": attribution, "cnn": attribution}).lines
    sentence = "can't be separated from the other axes: world_size, execution and strategy"
    assert (first, second) == (f"mlp: {sentence}", f"cnn: {sentence}")
