"""What `harness run` says before its trials start, and which records of jobs are delivered."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.paths import Results, SweepFolder
from harness.interface import delivery
from harness.interface.delivery import DeliveredRun, JobDelivery
from harness.records.files import write_record
from harness.render.console import TerminalConsole
from harness.render.plan import busy_line
from harness.slurm.status import SweepStatus, TrialState
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep
from harness.spec.validity import ValidityRules
from harness.tracking import Tracker
from tests.factories import make_record
from tests.support.sweeps import load

CORES = os.cpu_count() or 1


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return load(tmp_path, matrix={"precision": ["fp32", "bf16"]}, seeds=[0, 1])


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


def test_a_record_that_a_repeated_trial_has_left_is_delivered_too(
    sweep: Sweep, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered: list[list[str]] = []
    everything: list[SweepFolder] = []
    monkeypatch.setattr(
        Tracker, "deliver_trials", lambda _, __, trials: delivered.append(list(trials))
    )
    monkeypatch.setattr(Tracker, "deliver", lambda _, folder: everything.append(folder))
    rows = []
    for trial in sweep.trials()[:2]:
        record = make_record(trial.cell, seed=trial.seed, status="failed")
        path = results.sweep_folder("demo").trial_folder(trial.id).record_path
        write_record(path, record)
        os.utime(path, (record.ended, record.ended))
        row = TrialState(
            trial=trial.id, label="", seed=trial.seed, repeat=0, state="failed", is_submitted=True
        )
        rows.append(row)
    queued = TrialState(
        trial="another", label="", seed=0, repeat=0, state="running", is_submitted=True
    )
    status = SweepStatus(sweep=sweep, trials=[*rows, queued], slurm_error=None)
    jobs = JobDelivery(results, None)
    jobs.deliver(status)
    jobs.deliver(status)
    write_record(path, replace(record, attempt=2))
    jobs.deliver(status)
    assert jobs.error is None
    assert delivered == [[row.trial for row in rows], [record.trial.id]]
    assert everything == []
    write_record(path, replace(record, attempt=3))
    jobs.deliver(replace(status, trials=rows))  # all have ended: with the verdicts
    assert everything == [results.sweep_folder("demo")]


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
