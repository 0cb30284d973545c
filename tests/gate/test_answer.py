"""What a gate says of a cell that was compared with its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.analysis.compare import Rules, Side, compare
from harness.gate.answer import judge_cell
from harness.gate.limits import read_gate, unused_patterns
from tests.factories import make_cell
from tests.support.results import make_result
from tests.support.sweeps import load

CELL = make_cell()


def side(name: str, metrics: Sequence[float], speeds: Sequence[float]) -> Side:
    """A side with a trial for each metric, at these samples/s."""
    return Side(name=name, cells=[make_result(speeds, cell=CELL, metrics=metrics, bits=name)])


def test_the_first_line_says_why_a_cell_fails() -> None:
    """pytest's summary has room for that line only; what is merely inconclusive comes after it."""
    before = side("a", [0.95, 0.951, 0.949, 0.95], [100.0, 140.0, 90.0, 120.0])
    now = side("b", [0.50, 0.503, 0.498, 0.501], [120.0, 95.0, 130.0, 100.0])
    answer = judge_cell(CELL, read_gate(None).limits(CELL), compare(before, [now], Rules()), 4)
    assert answer.outcome == "fail"
    first, *others = answer.text.splitlines()
    assert first.startswith("worse accuracy: ")
    assert any(line.startswith("inconclusive: samples/s") for line in others)


def test_a_run_of_the_baselines_own_trials_does_not_pass() -> None:
    baseline = side("a", [0.95, 0.951, 0.949, 0.95], [100.0, 100.1, 100.2, 99.9])
    run = Side(name="run", cells=baseline.cells)
    answer = judge_cell(CELL, read_gate(None).limits(CELL), compare(baseline, [run], Rules()), 4)
    assert answer.outcome == "fail"
    assert "run and baseline are the same trials: measure again" in answer.text


def test_a_label_with_brackets_names_its_cell(tmp_path: Path) -> None:
    sweep = load(tmp_path, length={"steps": 30}, matrix={"options.hidden": [[16], [32, 16]]})
    small, large = sweep.cells
    assert "hidden=[16]" in small.label
    path = tmp_path / "gate.yaml"
    path.write_text(f"cells: {{'{small.label}': {{bits: fail}}}}\n", encoding="utf-8")
    gate = read_gate(path)
    assert (gate.limits(small).bits, gate.limits(large).bits) == ("fail", "ignore")
    assert unused_patterns(gate, sweep.cells) == []
