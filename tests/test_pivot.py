"""A sweep at a glance: some axes across, the others down."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from harness.errors import BadInput
from harness.record import Record
from harness.spec import Sweep
from harness.view.pivot import pivot_table, show_pivot
from tests.factories import make_record
from tests.support.sweeps import load


def lines(sweep: Sweep, records: list[Record], across: list[str]) -> list[str]:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(pivot_table(sweep, records, across))
    return [" ".join(line.split()) for line in captured.get().splitlines()]


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    matrix = {"precision": ["fp32", "bf16"], "workers": [0, 2], "execution": ["eager", "compile"]}
    return load(tmp_path, matrix=matrix, exclude=[{"workers": 2, "execution": "compile"}], length={"steps": 100})


def test_every_cell_stands_once_under_its_values(sweep: Sweep) -> None:
    records = [make_record(cell, step_seconds=0.01 * (1 + number)) for number, cell in enumerate(sweep.cells)]
    rate = {
        (cell.axes.precision, cell.axes.workers, cell.axes.execution): f"{record.summary.throughput:,.0f}"
        for cell, record in zip(sweep.cells, records, strict=True)
        if record.summary and record.summary.throughput
    }
    assert len(set(rate.values())) == 6
    assert lines(sweep, records, ["precision"]) == [
        "workload execution workers fp32 bf16",
        f"mlp eager 0 {rate['fp32', 0, 'eager']} {rate['bf16', 0, 'eager']}",
        f"mlp compile 0 {rate['fp32', 0, 'compile']} {rate['bf16', 0, 'compile']}",
        f"mlp eager 2 {rate['fp32', 2, 'eager']} {rate['bf16', 2, 'eager']}",
    ]


def test_what_is_not_there_is_a_dash(sweep: Sweep) -> None:
    failed = make_record(sweep.cells[0], status="failed")
    assert lines(sweep, [failed], ["execution", "precision"]) == [
        "workload workers eager fp32 compile fp32 eager bf16 compile bf16",
        "mlp 0 – – – –",
        "mlp 2 – – – –",
    ]


def test_an_axis_that_does_not_differ_is_refused(sweep: Sweep) -> None:
    with pytest.raises(BadInput, match="--across: found 'strategy', in which the cells do not differ; allowed: exec"):
        show_pivot(sweep, [], ["strategy"])
