"""A sweep at a glance: some axes across, the others down."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from harness.analysis.sweep_result import SweepResult
from harness.core.errors import BadInput
from harness.records.record import Record
from harness.render.console import as_rich
from harness.render.pivot import pivot_table, ratio_table, show_pivot
from harness.spec.sweep import Sweep
from tests.factories import make_record
from tests.support.sweeps import load


def lines(sweep: Sweep, records: list[Record], across: list[str]) -> list[str]:
    console = Console(width=200)
    result = SweepResult.of_records(sweep, records)
    with console.capture() as captured:
        console.print(as_rich(pivot_table(sweep, result, across)))
    return [" ".join(line.split()) for line in captured.get().splitlines()]


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    matrix = {
        "precision": ["fp32", "bf16"],
        "num_workers": [0, 2],
        "execution": ["eager", "compile"],
    }
    return load(
        tmp_path,
        matrix=matrix,
        exclude=[{"num_workers": 2, "execution": "compile"}],
        length={"steps": 100},
    )


def test_every_cell_is_under_its_values_once(sweep: Sweep) -> None:
    records = [
        make_record(cell, step_seconds=0.01 * (1 + number))
        for number, cell in enumerate(sweep.cells)
    ]
    rate = {
        (
            cell.axes.precision,
            cell.axes.num_workers,
            cell.axes.execution,
        ): f"{record.summary.throughput:,.0f}"
        for cell, record in zip(sweep.cells, records, strict=True)
        if record.summary and record.summary.throughput
    }
    assert len(set(rate.values())) == 6
    assert lines(sweep, records, ["precision"]) == [
        "workload execution num_workers fp32 bf16",
        f"mlp eager 0 {rate['fp32', 0, 'eager']} {rate['bf16', 0, 'eager']}",
        f"mlp compile 0 {rate['fp32', 0, 'compile']} {rate['bf16', 0, 'compile']}",
        f"mlp eager 2 {rate['fp32', 2, 'eager']} {rate['bf16', 2, 'eager']}",
    ]


def test_missing_cells_are_dashes(sweep: Sweep) -> None:
    failed = make_record(sweep.cells[0], status="failed")
    assert lines(sweep, [failed], ["execution", "precision"]) == [
        "workload num_workers eager fp32 compile fp32 eager bf16 compile bf16",
        "mlp 0 – – – –",
        "mlp 2 – – – –",
    ]


def test_an_axis_that_does_not_differ_is_refused(sweep: Sweep) -> None:
    with pytest.raises(
        BadInput,
        match="--pivot: found 'strategy', in which the cells do not differ; allowed: exec",
    ):
        show_pivot(sweep, [], ["strategy"])


def test_ratios_are_of_trials_that_differ_in_nothing_else(tmp_path: Path) -> None:
    sweep = load(
        tmp_path, matrix={"precision": ["fp32", "bf16"]}, seeds=[0, 1, 2], length={"steps": 100}
    )
    fp32, bf16 = sweep.cells
    # Seeds are of very different speed; within each, bf16 takes 2, 4 and 8 times as long.
    seconds = {0: 0.001, 1: 0.1, 2: 0.01}
    records = [make_record(fp32, seed=seed, step_seconds=step) for seed, step in seconds.items()]
    records += [
        make_record(bf16, seed=seed, step_seconds=step * 2 ** (seed + 1))
        for seed, step in seconds.items()
    ]
    console = Console(width=200)
    result = SweepResult.of_records(sweep, records)
    with console.capture() as captured:
        console.print(as_rich(ratio_table(sweep, result, ["precision"])))
    # The mean of -1, -2 and -3 octaves is a quarter; Student's half width 4.303 / sqrt(3) octaves.
    low, high = 0.25 * 2 ** (-4.3027 / 3**0.5), 0.25 * 2 ** (4.3027 / 3**0.5)
    assert (
        " ".join(captured.get().splitlines()[1].split())
        == f"mlp 0.25 [{low:.2f}, {high:.2f}], 3 pairs"
    )


def test_trials_of_earlier_commands_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = load(tmp_path, seeds=[0, 1, 2], matrix={"precision": ["fp32", "bf16"]})
    records = [make_record(trial.cell, seed=trial.seed) for trial in first.trials()]
    last = load(tmp_path, seeds=[3], matrix={"precision": ["fp32", "bf16"]})
    records += [make_record(trial.cell, seed=trial.seed) for trial in last.trials()]
    show_pivot(last, records, ["precision"])
    out = " ".join(capsys.readouterr().out.split())
    assert "samples/s, means over trials ± 95% intervals from 3 trials on" in out
    assert "8 of 8 trials" in out
