"""Baselines: small files, and no damage to them goes unnoticed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis import baseline
from harness.analysis.result import CellResult, aggregate
from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.records.format import sealed_text
from tests.factories import make_cell, make_record
from tests.support.results import make_result


def test_a_saved_baseline_is_read_again(results: Results) -> None:
    cells = aggregate([make_record(make_cell(steps=100), seed=seed) for seed in (0, 1)])
    (path,) = baseline.save(results, cells)
    assert path == results.baselines / "Test-CPU-2-cores" / f"{cells[0].cell.id}.json"
    again = baseline.read(path)
    assert again.trials == cells[0].trials
    assert again.cell.id == cells[0].cell.id
    text = path.read_text(encoding="utf-8")
    assert baseline.dump(again) == text
    baseline.save(results, cells)
    assert path.read_text(encoding="utf-8") == text


def test_a_file_is_small_and_reads_well_in_a_diff(results: Results) -> None:
    """And names no path of this machine."""
    records = [make_record(make_cell(steps=5000), seed=seed) for seed in range(5)]
    (path,) = baseline.save(results, aggregate(records))
    text = path.read_text(encoding="utf-8")
    assert len(text) < 20_000
    assert max(map(len, text.splitlines())) < 250
    assert "/" not in text.replace("samples/s", "")
    cell = make_cell()
    settings = {"data.source": "idx", "data.path": "/home/somebody/data"}
    cell = replace(cell, workload=replace(cell.workload, settings=settings))
    assert "somebody" not in baseline.dump(make_result([1.0], cell=cell))


def test_saving_again_replaces_a_file_that_is_no_text(results: Results) -> None:
    path = saved(results)
    whole = path.read_bytes()
    path.write_bytes(b"\xff" + whole)
    with pytest.raises(BadInput, match="harness baseline writes it again"):
        baseline.read(path)
    assert saved(results).read_bytes() == whole


ONE = make_result([1.0])


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (make_result([None]), "found no trial with a measured throughput"),
        (make_result([], left_out={"failed": 3}), r"\(3 failed\)"),
        (
            make_result([], trials=[*ONE.trials, *make_result([1.0], hardware="Other").trials]),
            "found trials of hardware Other and Test-CPU-2-cores; allowed: one",
        ),
        (
            make_result([1.0], environment={"software.torch": ["2.11.0", "2.13.0"]}),
            r"found trials of software\.torch 2\.11\.0 and 2\.13\.0; allowed: one",
        ),
    ],
)
def test_cells_that_nothing_can_be_compared_with_are_refused(
    results: Results, result: CellResult, why: str
) -> None:
    good = make_result([1.0], cell=make_cell(precision="bf16"))
    with pytest.raises(BadInput, match=why):
        baseline.save(results, [good, result])
    assert baseline.files(results) == []


def saved(results: Results) -> Path:
    (path,) = baseline.save(results, [make_result([1000.0, 1001.0])])
    return path


def test_other_files_schemas_and_numbers_are_refused(results: Results) -> None:
    path = saved(results)
    text = path.read_text(encoding="utf-8")
    content = json.loads(text)
    schema = "schema: found 3; allowed: 6; another .*; harness baseline writes it again"
    for damaged, why in (
        (sealed_text(content | {"schema": 3}), schema),
        (sealed_text(content | {"result": 5}), "can't be read as a baseline"),
        (text.replace(": 1000.0", ": 900.0"), "seal: found .*; harness baseline writes it again$"),
    ):
        path.write_text(damaged, encoding="utf-8")
        with pytest.raises(BadInput, match=why):
            baseline.read(path)
