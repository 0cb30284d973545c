"""Where a step's time goes, as a reader of the terminal sees it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.records.record import SlowestRank
from harness.render.phases import show_phases
from harness.render.table import MAX_WIDTH
from tests.factories import make_record
from tests.support.sweeps import load

DDP = {"strategy": "ddp", "world_size": 2}


def test_phases_of_every_cell_with_straggler_and_steadiness(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = load(tmp_path, length={"steps": 100}, warmup=2, include=[DDP])
    single, ddp = (make_record(cell) for cell in sweep.cells)
    assert ddp.summary is not None
    shares = {
        "data_wait": 0.1,
        "forward": 0.25,
        "backward": 0.25,
        "communication": 0.3,
        "optimizer": 0.1,
    }
    summary = replace(
        ddp.summary,
        shares=shares,
        slowest=SlowestRank(rank=1, host="node2", skew=0.12),
        settled=False,
    )
    records = [single, replace(ddp, summary=summary)]
    show_phases(sweep, records, wide=False)
    tables = capsys.readouterr().out.splitlines()[:-1]  # the last line is a sentence, which wraps
    assert max(map(len, tables)) <= MAX_WIDTH
    show_phases(sweep, records, wide=True)
    heading, single_row, ddp_row, legend, *_ = (
        line.split() for line in capsys.readouterr().out.splitlines()
    )
    assert heading[-8:] == [
        "data",
        "wait",
        "forward",
        "backward",
        "commun.",
        "optimizer",
        "skew",
        "steady",
    ]
    assert single_row[-9:] == ["10.0%", "40.0%", "30.0%", "–", "20.0%", "–", "from", "step", "2"]
    assert ddp_row[-12:] == [
        "10.0%",
        "25.0%",
        "25.0%",
        "30.0%",
        "10.0%",
        "12.0%",
        "rank",
        "1",
        "never,",
        "1",
        "of",
        "1",
    ]
    assert "█" * 32 in single_row
    assert legend.count("█") == 5


def test_what_if_names_what_each_wait_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a step, 30% is communication in the mean: 24% at the slowest of two ranks, whose other one
    waits 12% for it.
    """
    sweep = load(tmp_path, length={"steps": 100}, warmup=2, seeds=3, include=[DDP])
    _, ddp = sweep.cells
    records = []
    for seed in range(3):
        record = make_record(ddp, seed=seed)
        assert record.summary is not None
        summary = replace(
            record.summary,
            shares={"data_wait": 0.1, "forward": 0.6, "communication": 0.3},
            slowest=SlowestRank(rank=1, host="node2", skew=0.12),
        )
        records.append(replace(record, summary=summary))
    show_phases(sweep, records, wide=False)
    lines = capsys.readouterr().out.splitlines()
    assert any(
        line.endswith("+11.1% (11.1% to 11.1%)  +13.6% (13.6% to 13.6%)  +31.6% (31.6% to 31.6%)")
        for line in lines
    )
    assert max(map(len, lines[:-1])) <= MAX_WIDTH
