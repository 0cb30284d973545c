"""What `harness run` says before its trials start."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.paths import Results
from harness.interface import delivery
from harness.interface.delivery import DeliveredRun
from harness.records.files import write_record
from harness.render.console import TerminalConsole
from harness.render.plan import busy_line
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep
from harness.spec.validity import ValidityRules
from tests.factories import make_record
from tests.support.sweeps import load

CORES = os.cpu_count() or 1


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return load(tmp_path, matrix={"precision": ["fp32", "bf16"]}, seeds=[0, 1])


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


@pytest.fixture
def load_average(monkeypatch: pytest.MonkeyPatch) -> float:
    """Make other programs want many cores."""
    load = CORES + 10.0
    monkeypatch.setattr(delivery, "load_of_others", lambda: load)
    return load


def first_lines(sweep: Sweep, results: Results, profile: Profile) -> list[str]:
    """Return the lines that a run of all trials begins with."""
    console = TerminalConsole(width=200)
    run = DeliveredRun(sweep, profile, results, None, console)
    with console.capture() as captured:
        run.on_plan(sweep.trials(), [])
    return captured.get().splitlines()


def test_the_first_line_has_trials_cells_and_time(sweep: Sweep, results: Results) -> None:
    quiet = Profile(validity=ValidityRules(contention=None))
    assert first_lines(sweep, results, quiet) == [
        "demo: 4 trials of 2 cells; time: unknown, no cell has a record yet"
    ]
    record = replace(make_record(sweep.cells[0]), started=100.0, ended=130.0)
    path = results.sweep_folder("demo").trial_folder(record.trial.id).record_path
    write_record(path, record)
    assert first_lines(sweep, results, quiet) == [
        "demo: 4 trials of 2 cells; time: 1 min 0 s for 1 cell with records, unknown for 1"
    ]


def test_a_busy_machine_has_a_line(sweep: Sweep, results: Results, load_average: float) -> None:
    lines = first_lines(sweep, results, Profile())
    assert lines[1:] == [busy_line(load_average, CORES)]
    assert lines[1].startswith(
        f"load {load_average:.1f} on {CORES} cores: trials will be invalid; "
    )
    assert "validity.contention: null" in lines[1]


@pytest.mark.usefixtures("load_average")
def test_a_profile_that_allows_contention_has_no_line(sweep: Sweep, results: Results) -> None:
    assert len(first_lines(sweep, results, Profile(validity=ValidityRules(contention=None)))) == 1


def test_a_quiet_machine_has_no_line(
    sweep: Sweep, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "load_of_others", lambda: 0.5)
    assert len(first_lines(sweep, results, Profile())) == 1
