"""A plan of many cells is summarized by axis, and shown in full where that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.paths import Results
from harness.records.store import write_spec
from harness.slurm.submission import Submission
from harness.slurm.submit import PreparedSubmission
from harness.sweep.cluster import Profile
from harness.sweep.sweep import load_sweep
from harness.view import plan
from harness.view.console import TerminalConsole, show
from harness.view.plan import submission_view
from harness.view.run import RunView
from tests.support.commands import harness

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


def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str], sizes: int, *, in_full: bool) -> str:
    """Return the plan of a sweep with so many batch sizes."""
    path = tmp_path / "sweep.yaml"
    batch_sizes = ", ".join(str(2 * number) for number in range(1, sizes + 1))
    path.write_text(SWEEP % batch_sizes, encoding="utf-8")
    show(plan.plan_view(load_sweep(path), {}, in_full=in_full))
    return capsys.readouterr().out


def test_many_cells_are_cut_unless_all_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(tmp_path, capsys, 300, in_full=True)
    assert text.count("\nmlp-") == 1797
    lines = shown(tmp_path, capsys, 300, in_full=False).splitlines()
    assert len([line for line in lines if line.startswith("mlp-")]) == plan.MOST_ROWS
    assert "and 1,597 more cells; --all lists them" in lines
    assert "left out by exclude[0]: (the sweep says so): 4" in lines
    assert any("(strategy single is one rank" in line and ": 599" in line for line in lines)


def test_run_submit_and_show_say_which_combinations_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP % "2, 4, 6", encoding="utf-8")
    sweep = load_sweep(path)
    (found,) = plan.conflict_lines(sweep)
    assert found == "5 of 24 combinations left out; harness plan says why"
    results = Results(tmp_path / "results")

    view = RunView(sweep, results, TerminalConsole())
    view.on_plan(sweep.trials(), [])
    view.on_plan(sweep.trials(), [])  # a further repeat
    assert capsys.readouterr().out.splitlines().count(found) == 1

    resumed = RunView(sweep, results, TerminalConsole())
    resumed.on_plan([], [])
    resumed.on_plan(sweep.trials(), [])
    assert capsys.readouterr().out.splitlines().count(found) == 1
    submission = Submission(sweep=sweep, profile=Profile(), arrays=[])
    prepared = PreparedSubmission(
        submission=submission, finished_trials=0, live_trials=0, remarks=[]
    )
    show(submission_view(prepared))
    assert capsys.readouterr().out.splitlines().count(found) == 1

    write_spec(sweep, results.sweep_folder("wide"))
    ended = harness("show", "wide", "--results", str(results.path))
    assert ended.out.splitlines().count(found) == 1


def test_what_an_exclude_names_needs_no_line(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    text = (
        "name: a\nworkloads: {mlp: {}}\nmatrix: {batch_size: [2, 4]}\nexclude: [{batch_size: 2}]\n"
    )
    path.write_text(text, encoding="utf-8")
    assert plan.conflict_lines(load_sweep(path)) == []
