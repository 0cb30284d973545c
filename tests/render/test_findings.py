"""What is said about the winner of a workload, and that certainty is claimed by one rule."""

from __future__ import annotations

import pytest

from harness.analysis.sweep_result import SweepResult
from harness.render.console import TerminalConsole
from harness.render.findings import WorkloadFinding, conclusions, findings, too_few_notes
from harness.render.format import cell_names, effect_interval
from harness.render.results import show_verdicts
from harness.spec.cell import Cell
from tests.factories import BEGUN, make_cell
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


def sentences(*speeds_by_cell: tuple[Cell, list[float]]) -> list[str]:
    """Return the sentences on a sweep of cells with these samples/s, one trial for each."""
    cells = [make_result(speeds, cell=cell) for cell, speeds in speeds_by_cell]
    result = SweepResult(name="demo", cells=cells)
    return conclusions(result, lambda cell: cell.axes.precision)


def test_a_decided_sweep_has_a_fastest_cell_and_nothing_open() -> None:
    assert sentences((REFERENCE, [100.0, 101.0, 99.0]), (OTHER, [200.0, 202.0, 198.0])) == [
        "Fastest: bf16 with 200 samples/s, certain at 95%.",
        "Equal in speed: none is shown to be.",
        "Undecided: none.",
    ]


def test_cells_that_are_shown_to_be_the_same_are_named() -> None:
    same = [100.0, 100.01, 99.99, 100.0, 100.02]
    assert sentences((REFERENCE, same), (OTHER, same[::-1]))[1:] == [
        "Equal in speed: bf16 and fp32.",
        "Undecided: none.",
    ]


def test_an_open_comparison_says_nothing_that_is_not_known() -> None:
    noisy = (REFERENCE, [100.0, 100.0, 100.0, 100.0]), (OTHER, [110.0, 90.0, 112.0, 111.0])
    fastest, _, undecided = sentences(*noisy)
    assert fastest == "Fastest: bf16 with 105 samples/s, not certain: fp32 may be as fast."
    assert undecided == "Undecided: bf16 against fp32; more seeds or longer trials may decide."


@pytest.mark.parametrize("count", [1, 2])
def test_few_trials_take_five_seeds(count: int) -> None:
    few = (REFERENCE, [100.0, 130.0][:count]), (OTHER, [120.0, 90.0][:count])
    assert sentences(*few)[2] == "Undecided: bf16 against fp32; that takes 5 seeds or more."


def test_one_cell_has_its_speed_only() -> None:
    assert sentences((REFERENCE, [100.0, 101.0])) == [
        "fp32 reaches 100 samples/s; no other cell was measured."
    ]
    assert sentences((REFERENCE, [])) == []


def test_too_few_trials_for_an_interval_are_said_once() -> None:
    two = make_result([100.0, 101.0])
    assert too_few_notes([two, two]) == ["2 trials: too few for an interval; 5 seeds suffice"]
    assert too_few_notes([make_result([100.0]), make_result([100.0, 101.0, 99.0])]) == []


def test_the_verdict_table_has_the_intervals_of_the_report(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Cells of a single trial are judged with the others, though the terminal does not list them."""
    speeds = {"fp32": [100.0, 101.0, 99.0], "bf16": [200.0, 203.0, 196.0]}
    cells = [make_result(values, cell=make_cell(precision=key)) for key, values in speeds.items()]
    for label in ("cnn", "distilbert"):
        for key in speeds:
            cells.append(make_result([100.0], cell=make_cell(label, precision=key)))
    result = SweepResult(name="demo", cells=cells)
    names = cell_names(result.all_cells)
    show_verdicts(TerminalConsole(width=200), result, names, wide=True)
    row = result.throughput_row(cells[1].cell)
    assert row is not None
    printed = capsys.readouterr().out
    assert f" {effect_interval(row.verdict)} " in printed
    assert "cnn" not in printed


@pytest.mark.parametrize("started", [None, [BEGUN + 1e6 + 100 * seed for seed in range(3)]])
def test_the_verdict_table_says_which_cells_were_not_measured_in_turn(
    started: list[float] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [
        make_result([100.0, 101.0, 99.0], cell=REFERENCE),
        make_result([200.0, 203.0, 196.0], cell=OTHER, started=started),
    ]
    result = SweepResult(name="demo", cells=cells)
    show_verdicts(TerminalConsole(width=200), result, cell_names(result.all_cells), wide=True)
    printed = capsys.readouterr().out
    was_later = started is not None
    assert (" 3 unpaired " in printed) is was_later
    assert ("unpaired: not interleaved: what the machine did" in printed) is was_later
