"""What MLflow shows of a sweep's result: metrics, tags, descriptions and a picture."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import pytest

from harness.analysis.result import CellResult
from harness.analysis.sweep_result import SweepResult
from harness.tracking.figures import draw_board
from harness.tracking.markdown import GAP, describe, headline, leader_board
from harness.tracking.verdicts import (
    LETTERS,
    error_bars,
    interval_metrics,
    verdict_metrics,
    verdict_tags,
)
from tests.factories import make_cell
from tests.support.results import make_result

STUDENT_2 = 4.3027  # the 97.5% quantile of Student's distribution with 2 degrees of freedom


def make_cells(*speeds: float, label: str = "mlp") -> list[CellResult]:
    """Return a cell for each speed, of three trials that differ by 0.1%."""
    cells = []
    for number, speed in enumerate(speeds):
        cell = make_cell(label, batch_size=64 + number)
        cells.append(make_result([speed, speed * 1.001, speed * 0.999], cell=cell))
    return cells


def make_sweep_result(*speeds: float, label: str = "mlp") -> SweepResult:
    return SweepResult(name="demo", cells=make_cells(*speeds, label=label))


def table_rows(board: str) -> list[str]:
    """Return the lines of a table without its head."""
    return board.replace(GAP, "").splitlines()[2:]


def test_a_cell_has_its_count_and_interval() -> None:
    (cell,) = make_cells(100.0)
    metrics = interval_metrics(cell)
    half_width = 0.1 * STUDENT_2 / 3**0.5
    assert metrics["harness.ci_count"] == 3
    assert metrics["harness.ci_low"] == pytest.approx(100 - half_width, abs=1e-3)
    assert metrics["harness.ci_high"] == pytest.approx(100 + half_width, abs=1e-3)


def test_one_trial_has_no_interval() -> None:
    assert interval_metrics(make_result([100.0])) == {"harness.ci_count": 1}
    assert interval_metrics(make_result([])) == {}


def test_a_verdict_is_against_the_first_cell_of_the_workload() -> None:
    slow, fast = make_cells(100.0, 150.0)
    result = SweepResult(name="demo", cells=[slow, fast])
    assert verdict_tags(result, slow.cell) == {"harness.verdict": "reference"}
    assert verdict_metrics(result, slow.cell) == {}
    tags = verdict_tags(result, fast.cell)
    assert (tags["harness.verdict"], tags["harness.reference"]) == ("faster", slow.cell.label)
    assert tags["harness.verdict_accuracy"] == "same"
    assert "| samples/s | 150 | 100 | 1.500× |" in tags["mlflow.note.content"].replace(GAP, "")
    metrics = verdict_metrics(result, fast.cell)
    assert metrics["harness.speedup"] == pytest.approx(1.5)
    assert metrics["harness.speedup_low"] <= 1.5 <= metrics["harness.speedup_high"]


def test_single_trials_are_inconclusive_and_have_no_interval() -> None:
    slow = make_result([100.0], cell=make_cell(batch_size=100))
    fast = make_result([150.0], cell=make_cell(batch_size=150))
    result = SweepResult(name="demo", cells=[slow, fast])
    assert verdict_tags(result, fast.cell)["harness.verdict"] == "inconclusive"
    assert set(verdict_metrics(result, fast.cell)) == {"harness.speedup"}


def test_the_reference_is_a_measured_cell() -> None:
    failed = make_result([], cell=make_cell(batch_size=1), left_out={"failed": 3})
    slow, fast = make_cells(100.0, 150.0)
    result = SweepResult(name="demo", cells=[failed, slow, fast])
    assert verdict_tags(result, fast.cell)["harness.reference"] == slow.cell.label
    assert verdict_tags(result, failed.cell) == {}


def test_the_board_runs_from_the_fastest_to_the_slowest() -> None:
    lines = table_rows(leader_board(make_sweep_result(100.0, 150.0, 50.0), "mlp", 10))
    assert [line.split()[1] for line in lines] == ["b65", "b64", "b66"]
    assert "faster" in lines[0]
    assert "reference" in lines[1]
    assert "slower" in lines[2]


def test_a_description_names_the_winner_and_its_certainty() -> None:
    text = describe("", make_sweep_result(100.0, 150.0), 5000)
    assert "Fastest is b65 with 150 samples/s" in text
    assert "certain at 95%: the other cell is slower" in text


def test_a_long_description_has_shorter_tables() -> None:
    result = make_sweep_result(*(100.0 + number for number in range(60)))
    short = describe("what it is", result, 2000)
    assert len(short) <= 2000
    assert short.startswith("what it is")
    assert "more" in short
    assert len(describe("what it is", result, 100_000)) > 4000


def test_texts_of_users_have_no_meaning_to_markdown_or_html() -> None:
    text = describe("", make_sweep_result(100.0, 150.0, label="a|b<script>`*"), 5000)
    assert "<script>" not in text
    assert "a\\|b&lt;script>\\`\\*" in text


def test_error_bars_share_a_scale() -> None:
    wide = make_result([90.0, 100.0, 110.0], cell=make_cell(batch_size=8))
    narrow = make_result([99.9, 100.0, 100.1], cell=make_cell(batch_size=16))
    fast = make_result([150.0, 150.1, 149.9], cell=make_cell(batch_size=32))
    bars = error_bars([wide, narrow, fast])
    assert {(bar[:3], bar[-4:]) for bar in bars.values()} == {("77 ", " 160")}
    drawn = [bar.split()[1] for bar in bars.values()]
    columns = [[at for at, letter in enumerate(bar) if letter != "\u2800"] for bar in drawn]
    assert {len(bar) for bar in drawn} == {LETTERS}
    assert (min(columns[0]), max(columns[2])) == (0, LETTERS - 2)
    assert len(columns[1]) <= 2
    assert set(columns[1]) < set(columns[0])
    assert error_bars([make_result([], cell=make_cell())]) == {}
    assert len(set(error_bars([make_result([100.0], cell=make_cell())]).values())) == 1


def test_the_headline_says_which_cell_is_fastest_and_whether_that_is_certain() -> None:
    certain = headline(make_sweep_result(100.0, 150.0), "abc", 5000)
    assert certain.splitlines()[0].endswith(": fastest is b65, certain at 95%.")
    assert "get-artifact?path=figures%2Fmlp.png&run_uuid=abc" in certain
    uncertain = headline(make_sweep_result(100.0, 100.0), "abc", 5000)
    assert uncertain.splitlines()[0].endswith(": fastest is b64, not certain.")
    alone = headline(make_sweep_result(100.0), "abc", 60)
    assert alone.startswith("**mlp**: only mlp eager fp32")
    assert len(alone) <= 60


def test_the_picture_has_every_cell(tmp_path: Path) -> None:
    heights = []
    for count in (2, 12):
        path = tmp_path / f"{count}.png"
        speeds = [100.0 + number for number in range(count)]
        draw_board(make_sweep_result(*speeds, label="$x_{"), "$x_{", path)
        heights.append(matplotlib.image.imread(path).shape[0])
    assert heights[1] > heights[0] + 200
