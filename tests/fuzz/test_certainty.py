"""Certainty is claimed by one rule, wherever it is shown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.questions import SPEED, throughput_difference
from harness.analysis.result import CellResult
from harness.analysis.sweep_result import SweepResult
from harness.render.findings import conclusions
from tests.factories import make_cell
from tests.support.results import make_result

# Cells whose trials scatter by a factor around speeds that may be far apart or equal.
SPEEDS = st.sampled_from([100.0, 101.0, 110.0, 200.0, 1000.0]) | st.floats(1.0, 1e5)
SCATTER = st.lists(st.floats(0.5, 2.0) | st.floats(0.99, 1.01), min_size=1, max_size=5)


@st.composite
def results(draw: st.DrawFn) -> SweepResult:
    """Return the result of a sweep of a workload with some cells."""
    cells: list[CellResult] = []
    for number in range(draw(st.integers(2, 4))):
        speed = draw(SPEEDS)
        speeds: list[float | None] = [speed * factor for factor in draw(SCATTER)]
        # Begun together, trials of two cells are no interleaved pairs.
        every = draw(st.sampled_from([0.0, 100.0]))
        cells.append(make_result(speeds, cell=make_cell(batch_size=64 + number), every=every))
    return SweepResult(name="demo", cells=cells)


@given(results())
def test_no_winner_is_certain_whose_interval_holds_1(result: SweepResult) -> None:
    (sentence,) = conclusions(result, lambda cell: cell.label)
    is_certain = result.is_winner_certain("mlp")
    assert ("; certain at 95%" in sentence) == is_certain
    if not is_certain:
        return
    winner, *others = result.ranking("mlp")
    for other in others:
        difference = throughput_difference(other, winner, SPEED.min_effect)
        assert difference is not None
        low, _ = difference.question.estimate.interval()
        assert low > 0  # of the logarithm of the ratio
    row = result.throughput_row(winner.cell)
    if row is not None:
        assert row.verdict.label == "faster"
        assert row.verdict.interval is not None
        assert row.verdict.interval[0] > 1
    for other in others:
        row = result.throughput_row(other.cell)
        if row is not None and row.a.cell.id == winner.cell.id:
            assert row.verdict.label == "slower"
            assert row.verdict.interval is not None
            assert row.verdict.interval[1] < 1


@given(results())
def test_interval_of_a_cell_is_positive_and_holds_its_mean(result: SweepResult) -> None:
    for cell in result.cells:
        assert cell.throughput is not None
        if cell.throughput.bounds is not None:
            low, high = cell.throughput.bounds
            assert 0 <= low <= cell.throughput.mean * (1 + 1e-12)
            assert high >= cell.throughput.mean * (1 - 1e-12)
