"""The parity of a sweep as a model: rungs, exit codes, seeds, and the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.parity import CellParity, read_parity, with_seeds, write_parity
from harness.analysis.rungs import Rung
from harness.core.errors import BadFile
from harness.core.paths import SweepFolder
from harness.records.format import sealed_text
from tests.support.parity import OTHER, REFERENCE, make_parity
from tests.support.results import make_result


def judged(metrics: list[float], others: list[float], **changes: Any) -> CellParity:
    """Return the cell after its seeds were asked, by the metrics of both cells."""
    results = [make_result([100.0] * len(metrics), cell=REFERENCE, metrics=metrics)]
    if others:
        speeds = [100.0] * len(others)
        results.append(make_result(speeds, cell=OTHER, metrics=others, bits="b"))
    return with_seeds(make_parity(**changes), results).cells[0]


def test_seeds_decide_where_tensors_do_not() -> None:
    same = judged([0.90, 0.91, 0.92, 0.93], [0.901, 0.909, 0.921, 0.930])
    assert same.seeds is not None
    assert (same.rung, same.seeds.outcome) == ("equivalent", "same")
    assert same.seeds.metric.name == "accuracy"
    assert same.seeds.interval is not None
    low, high = same.seeds.interval
    assert -0.01 < low < 0 < high < 0.01
    different = judged([0.90, 0.91, 0.92, 0.93], [0.80, 0.82, 0.83, 0.84])
    assert different.rung == "different"


def test_too_few_seeds_decide_nothing() -> None:
    open_cell = judged([0.90, 0.92], [0.905, 0.91])
    assert open_cell.seeds is not None
    assert (open_cell.rung, open_cell.seeds.outcome) == (None, "inconclusive")
    single = judged([0.9], [0.9])
    assert (single.rung, single.seeds) == (None, None)


def test_seeds_are_not_asked_in_vain() -> None:
    for changes in ({"tensor_rung": "rounding"}, {"failure": "it failed"}, {"by_design": ["lr"]}):
        assert judged([0.9, 0.91, 0.92], [0.5, 0.51, 0.52], **changes).seeds is None
    assert judged([0.9, 0.91, 0.92], []).seeds is None


@pytest.mark.parametrize(
    ("changes", "lowest", "code"),
    [
        ({"tensor_rung": "bitwise"}, "bitwise", 0),
        ({"tensor_rung": "rounding"}, "equivalent", 0),
        ({"tensor_rung": "rounding"}, "bitwise", 1),
        ({}, "equivalent", 3),
        ({}, "different", 3),
        ({}, "rounding", 1),  # tensors deny it, whatever the seeds say
        ({"failure": "it failed"}, "different", 1),
        ({"by_design": ["lr"]}, "bitwise", 0),
    ],
)
def test_exit_codes(changes: dict[str, Any], lowest: Rung, code: int) -> None:
    assert make_parity(**changes).exit_code(lowest) == code


def test_without_fp64_that_rung_can_not_be_told() -> None:
    parity = make_parity()
    reference = replace(parity.references[0], fp64_problem="out of memory")
    assert replace(parity, references=[reference]).exit_code("rounding") == 3
    # Seeds that are equivalent do not make it worse.
    equivalent = replace(parity.cells[0], tensor_rung="equivalent")
    parity = replace(parity, references=[reference], cells=[equivalent])
    assert (parity.exit_code("equivalent"), parity.exit_code("rounding")) == (0, 3)


def test_the_file_gives_back_what_was_written_and_refuses_a_change(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    assert read_parity(folder) is None
    parity = replace(make_parity(), cells=[judged([0.90, 0.92], [0.905, 0.91])])
    write_parity(folder, parity)
    read = read_parity(folder)
    assert read is not None
    assert (read.cells[0].cell.id, read.cells[0].seeds) == (OTHER.id, parity.cells[0].seeds)
    assert read.of(OTHER) == read.cells[0]
    assert (read.of(REFERENCE), read.is_reference(REFERENCE)) == (None, True)
    text = folder.parity_path.read_text()
    folder.parity_path.write_text(text.replace('"compared": 40', '"compared": 41'))
    with pytest.raises(BadFile, match=r"parity\.json.*harness parity measures it again"):
        read_parity(folder)
    folder.parity_path.write_text(sealed_text({"schema": 9}))
    with pytest.raises(BadFile, match="another version"):
        read_parity(folder)
