"""What is said about the winner of a workload, and that certainty is claimed by one rule."""

from __future__ import annotations

from harness.analysis.sweep_result import SweepResult
from harness.render.findings import WorkloadFinding, findings
from harness.spec.cell import Cell
from tests.factories import make_cell
from tests.support.results import make_result

REFERENCE = make_cell()
OTHER = make_cell(precision="bf16")


def finding(*speeds_by_cell: tuple[Cell, list[float]]) -> WorkloadFinding:
    """Return the finding on a workload of cells with these samples/s, one trial for each."""
    cells = [make_result(speeds, cell=cell) for cell, speeds in speeds_by_cell]
    result = SweepResult(name="demo", cells=cells)
    (only,) = findings(result, lambda cell: cell.axes.precision)
    return only


def test_a_winner_that_every_other_cell_trails_is_certain() -> None:
    won = finding((REFERENCE, [100.0, 101.0, 99.0]), (OTHER, [200.0, 202.0, 198.0]))
    assert (won.winner, won.is_certain) == ("bf16", True)
    assert won.sentences[0].startswith(
        "Fastest is bf16 with 200 samples/s, 2.00 times the reference fp32 (interval "
    )
    assert won.sentences[1] == "That is certain at 95%: the other cell is slower."
    assert "the same as the reference's 0.9000" in won.sentences[2]
    assert "over all cells: 1 faster." in won.sentences[3]


def test_the_reference_can_win() -> None:
    won = finding((REFERENCE, [200.0, 202.0, 198.0]), (OTHER, [100.0, 101.0, 99.0]))
    assert won.sentences[0] == "Fastest is fp32 with 200 samples/s; it is the reference itself."


def test_a_contender_makes_the_winner_uncertain_and_is_named() -> None:
    won = finding((REFERENCE, [100.0, 110.0, 90.0]), (OTHER, [101.0, 91.0, 111.0]))
    assert won.is_certain is False
    assert won.sentences[1].startswith("Not certain: fp32 may be as fast")


def test_single_trials_are_never_certain() -> None:
    won = finding((REFERENCE, [100.0]), (OTHER, [200.0]))
    assert won.is_certain is False
    assert won.sentences[1].startswith("Not certain: one trial per cell")


def test_a_cell_without_rivals_is_neither_certain_nor_uncertain() -> None:
    won = finding((REFERENCE, [100.0, 101.0]))
    assert won.is_certain is None
    assert won.sentences[0] == "fp32 reaches 100 samples/s; no other cell was measured."
