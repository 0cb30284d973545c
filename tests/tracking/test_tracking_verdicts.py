"""What MLflow says of cells against each other: numbers, words and tables, from results alone."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import pytest

from harness.analysis.result import CellResult
from harness.tracking.figures import draw_board
from harness.tracking.verdicts import (
    GAP,
    Verdicts,
    board,
    describe,
    interval_metrics,
    verdict_metrics,
    verdict_tags,
)
from tests.factories import make_cell
from tests.support.results import make_result


def results(*speeds: float, label: str = "mlp") -> list[CellResult]:
    """A cell a speed, of three trials that scatter by 0.1%."""
    return [
        make_result(
            [speed, speed * 1.001, speed * 0.999], cell=make_cell(label, batch_size=64 + number)
        )
        for number, speed in enumerate(speeds)
    ]


def test_a_cell_has_its_count_and_interval() -> None:
    (cell,) = results(100.0)
    found = interval_metrics(cell)
    assert found["harness.count"] == 3
    assert found["harness.ci_low"] == pytest.approx(100 - 0.1 * 4.3027 / 3**0.5, abs=1e-3)
    assert found["harness.ci_high"] == pytest.approx(100 + 0.1 * 4.3027 / 3**0.5, abs=1e-3)


def test_one_trial_has_no_interval() -> None:
    assert interval_metrics(make_result([100.0])) == {"harness.count": 1}
    assert interval_metrics(make_result([])) == {}


def test_a_verdict_is_against_the_first_cell_of_the_workload() -> None:
    slow, fast = results(100.0, 150.0)
    verdicts = Verdicts.of("demo", [slow, fast])
    assert verdict_tags(verdicts, slow.cell.id) == {"harness.verdict": "reference"}
    tags, metrics = verdict_tags(verdicts, fast.cell.id), verdict_metrics(verdicts, fast.cell.id)
    assert (tags["harness.verdict"], tags["harness.reference"]) == ("faster", slow.cell.label)
    assert tags["harness.verdict_accuracy"] == "same"
    assert metrics["harness.speedup"] == pytest.approx(1.5)
    assert metrics["harness.speedup_low"] <= 1.5 <= metrics["harness.speedup_high"]
    assert "| samples/s | 150 | 100 | 1.500× |" in tags["mlflow.note.content"].replace(GAP, "")


def test_single_trials_are_inconclusive_and_have_no_interval() -> None:
    cells = [
        make_result([speed], cell=make_cell(batch_size=int(speed))) for speed in (100.0, 150.0)
    ]
    verdicts = Verdicts.of("demo", cells)
    assert verdict_tags(verdicts, cells[1].cell.id)["harness.verdict"] == "inconclusive"
    assert set(verdict_metrics(verdicts, cells[1].cell.id)) == {"harness.speedup"}


def test_the_reference_is_one_that_was_measured() -> None:
    failed, slow, fast = (
        make_result([], cell=make_cell(batch_size=1), left_out={"failed": 3}),
        *results(100.0, 150.0),
    )
    verdicts = Verdicts.of("demo", [failed, slow, fast])
    assert verdict_tags(verdicts, fast.cell.id)["harness.reference"] == slow.cell.label
    assert verdict_tags(verdicts, failed.cell.id) == {}


def test_the_board_is_from_the_fastest_down() -> None:
    cells = results(100.0, 150.0, 50.0)
    lines = board(Verdicts.of("demo", cells), "mlp", 10).replace(GAP, "").splitlines()[4:]
    assert [line.split(" | ")[0].split(" b")[1].split()[0] for line in lines] == ["65", "64", "66"]
    assert "faster" in lines[0]
    assert "reference" in lines[1]
    assert "slower" in lines[2]


def test_a_description_that_does_not_fit_has_shorter_tables() -> None:
    verdicts = Verdicts.of("demo", results(*(100.0 + number for number in range(60))))
    short = describe("what it is", verdicts, 2000)
    assert len(short) <= 2000
    assert short.startswith("what it is")
    assert "more" in short
    assert len(describe("what it is", verdicts, 100_000)) > 4000


def test_words_of_users_are_only_words() -> None:
    cells = results(100.0, 150.0, label="a|b<script>`*")
    text = describe("", Verdicts.of("demo", cells), 5000)
    assert "<script>" not in text
    assert "a\\|b&lt;script>\\`\\*" in text


def test_the_picture_has_every_cell(tmp_path: Path) -> None:
    heights = []
    for count in (2, 12):
        verdicts = Verdicts.of(
            "demo", results(*(100.0 + number for number in range(count)), label="$x_{")
        )
        draw_board(verdicts, "$x_{", tmp_path / f"{count}.png")
        heights.append(matplotlib.image.imread(tmp_path / f"{count}.png").shape[0])
    assert heights[1] > heights[0] + 300
