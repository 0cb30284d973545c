"""What a plan lists, and which combinations it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.sweep.sweep import load_sweep
from harness.view import plan
from harness.view.console import TerminalConsole, show
from harness.view.run import RunView
from tests.support.sweeps import load

SWEEP = """
name: wide
workloads: {mlp: {}}
matrix:
  precision: [fp32, bf16]
  strategy: [single, ddp]
  world_size: [1, 2]
  batch_size: [%s]
exclude: [{batch_size: 2, precision: bf16}]
"""


def test_of_many_cells_the_first_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sweep.yaml"
    batch_sizes = ", ".join(str(2 * number) for number in range(1, 301))
    path.write_text(SWEEP % batch_sizes, encoding="utf-8")
    show(plan.plan_view(load_sweep(path), {}))
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("mlp-")]) == plan.MOST_ROWS
    assert "and 1,597 more cells; --json lists them" in lines
    assert "left out by exclude[0]: the sweep says so: 4" in lines
    assert any("strategy single is one rank" in line and ": 599" in line for line in lines)


def test_a_run_says_once_which_combinations_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP % "2, 4, 6", encoding="utf-8")
    sweep = load_sweep(path)
    (found,) = plan.conflict_lines(sweep)
    assert found == "5 of 24 combinations left out; harness plan says why"

    view = RunView(sweep, TerminalConsole())
    view.on_plan(sweep.trials(), [])
    view.on_plan(sweep.trials(), [])  # a further repeat
    assert capsys.readouterr().out.splitlines().count(found) == 1

    resumed = RunView(sweep, TerminalConsole())
    resumed.on_plan([], [])
    resumed.on_plan(sweep.trials(), [])
    assert capsys.readouterr().out.splitlines().count(found) == 1


def test_what_an_exclude_names_needs_no_line(tmp_path: Path) -> None:
    sweep = load(tmp_path, matrix={"batch_size": [2, 4]}, exclude=[{"batch_size": 2}])
    assert plan.conflict_lines(sweep) == []
