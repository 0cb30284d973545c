"""What is said about the winner of a workload, and that certainty is claimed by one rule."""

from __future__ import annotations

import pytest

from harness.analysis.sweep_result import SweepResult
from harness.sweep.cell import Cell
from harness.view.findings import conclusions, remarks
from tests.factories import BEGUN, make_cell
from tests.support.results import make_result

REFERENCE = make_cell()
OTHER = make_cell(precision="bf16")


def sentence(*speeds_by_cell: tuple[Cell, list[float]]) -> str:
    """Return the sentence on a workload of cells with these samples/s, one trial for each."""
    cells = [make_result(speeds, cell=cell) for cell, speeds in speeds_by_cell]
    (only,) = conclusions(SweepResult(name="demo", cells=cells))
    return only


def test_a_winner_that_every_other_cell_trails_is_certain() -> None:
    said = sentence((REFERENCE, [100.0, 101.0, 99.0]), (OTHER, [200.0, 202.0, 198.0]))
    assert said.startswith("mlp: fastest is bf16 with 200 samples/s, 2.00")
    assert said.endswith(") fp32, accuracy same; certain at 95%.")


def test_a_contender_makes_the_winner_uncertain_and_is_named() -> None:
    said = sentence((REFERENCE, [100.0, 110.0, 90.0]), (OTHER, [101.0, 91.0, 111.0]))
    assert "; not certain: fp32 may be as fast." in said


def test_single_trials_are_never_certain() -> None:
    said = sentence((REFERENCE, [100.0]), (OTHER, [200.0]))
    assert said.startswith("mlp: fastest is bf16 with 200 samples/s, 2.00× fp32, accuracy same; ")
    assert said.endswith("not certain with one trial a cell.")


def test_several_workloads_are_named_and_a_cell_without_rivals_has_its_speed_only() -> None:
    result = SweepResult(name="demo", cells=[make_result([], cell=REFERENCE)])
    assert conclusions(result) == []
    cells = [make_result([100.0, 101.0], cell=REFERENCE), make_result([200.0, 202.0], cell=OTHER)]
    cells.append(make_result([100.0], cell=make_cell("cnn")))
    first, second = conclusions(SweepResult(name="demo", cells=cells))
    assert first.startswith("mlp: fastest is bf16 with ")
    assert second.startswith("cnn eager fp32 single")
    assert second.endswith(" reaches 100 samples/s; no other cell was measured.")


def test_too_few_trials_for_an_interval_are_said_once() -> None:
    cells = [make_result([100.0, 101.0], cell=cell) for cell in (REFERENCE, OTHER)]
    texts = [remark.text for remark in remarks(SweepResult(name="demo", cells=cells), [])]
    assert texts[-1] == "2 seeds: too few for an interval; 5 seeds suffice"
    cells = [make_result([100.0]), make_result([100.0, 101.0, 99.0], cell=OTHER)]
    result = SweepResult(name="demo", cells=cells)
    assert not [text for text in remarks(result, []) if "too few" in text.text]


@pytest.mark.parametrize("started", [None, [BEGUN + 1e6 + 100 * seed for seed in range(3)]])
def test_cells_that_were_not_measured_in_turn_are_called_unpaired(
    started: list[float] | None,
) -> None:
    cells = [make_result([100.0, 101.0, 99.0], cell=REFERENCE)]
    cells.append(make_result([200.0, 203.0, 196.0], cell=OTHER, started=started))
    result = SweepResult(name="demo", cells=cells)
    unpaired = [remark for remark in remarks(result, []) if "unpaired" in remark.text]
    assert bool(unpaired) is (started is not None)
    (said,) = conclusions(result)
    assert said.endswith("certain at 95%.") is (started is None)
