"""What `harness run` says first, and which trials `harness run --until` runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from harness import api
from harness.core.paths import Results
from harness.launch.runner import Runner
from harness.launch.sweep import Redo
from harness.records.record import Record
from harness.sweep.cell import Trial
from harness.view.console import TerminalConsole
from harness.view.run import RunView
from tests.factories import make_record, write_trial
from tests.support.running import RecordCollector
from tests.support.sweeps import load


class UndeliveredRun(RecordCollector):
    """A running sweep that is neither shown nor delivered."""

    def __init__(self, *_: object) -> None:
        super().__init__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def show_delivery(self) -> None: ...


def test_each_repeat_is_redone_once_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = load(tmp_path, length={"steps": 60}, warmup=2)
    results = Results(tmp_path / "results")
    folder = results.sweep_folder(sweep.name)

    def run(runner: Runner, trials: Sequence[Trial], *, fresh: bool) -> Iterator[Record]:
        for trial in trials:
            ran.append(trial.repeat)
            # An even repeat and an odd one differ by 0.1%.
            seconds = 0.01 + 1e-5 * (trial.repeat % 2)
            record = make_record(trial.cell, repeat=trial.repeat, step_seconds=seconds)
            write_trial(folder, record)
            yield record

    def run_until(redo: Redo) -> list[int]:
        """Return the repeats that ran, in order."""
        ran.clear()
        settings: dict[str, Any] = {"cluster": str(profile), "results": results.path}
        api.run(sweep.source, until="2%", force=redo == "all", progress=False, **settings)
        return list(ran)

    ran: list[int] = []
    profile = tmp_path / "quiet.yaml"
    profile.write_text("launcher: torchrun\nvalidity: {contention: null}\n")
    monkeypatch.setattr(Runner, "run", run)
    monkeypatch.setattr(api, "RunView", UndeliveredRun)
    delivered = nullcontext(SimpleNamespace(trouble=None))
    monkeypatch.setattr(api, "Follower", lambda *_: delivered)
    repeats = run_until("failed")
    assert repeats == list(range(len(repeats)))
    assert len(repeats) >= 3
    assert run_until("all") == repeats
    assert run_until("failed") == []
    write_trial(folder, make_record(sweep.cells[0], repeat=1, status="failed"))
    assert run_until("failed") == [1]


def first_lines(tmp_path: Path) -> list[str]:
    """Return the lines that a run of all trials of a sweep begins with."""
    sweep = load(tmp_path, matrix={"precision": ["fp32", "bf16"]}, seeds=[0, 1])
    console = TerminalConsole(width=200)
    planned = api.plan(tmp_path / "sweep.yaml", results=tmp_path / "results")
    run = RunView(sweep, console, planned.estimates)
    with console.capture() as captured:
        run.on_plan(sweep.trials(), [])
    return captured.get().splitlines()


def test_the_first_line_has_trials_cells_and_time(tmp_path: Path) -> None:
    (line,) = first_lines(tmp_path)
    assert line.startswith("demo: 4 trials of 2 cells; time: unknown")
    cell = load(tmp_path, matrix={"precision": ["fp32", "bf16"]}, seeds=[0, 1]).cells[0]
    record = replace(make_record(cell), started=100.0, ended=130.0)
    write_trial(Results(tmp_path / "results").sweep_folder("demo"), record)
    (line,) = first_lines(tmp_path)
    assert "1 min 0 s and 1 cell without records" in line
