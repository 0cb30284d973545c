"""What `harness run` shows of its trials: a line each, and at the end verdicts and remarks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.sweep_result import SweepResult
from harness.core.paths import Results
from harness.records.record import Failure, Record, Status
from harness.records.store import RecordedSweep, write_spec
from harness.sweep.sweep import Sweep
from harness.view.console import TerminalConsole, show
from harness.view.plan import QUIET_MACHINE
from harness.view.run import RunView
from harness.view.sweep import cells_table, sweep_view
from tests.factories import make_record, write_trial
from tests.support.benchmarks import SEEDS, records
from tests.support.commands import harness
from tests.support.sweeps import load


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """Return a sweep of fp32 and bf16, of as many seeds as `records` makes."""
    matrix = {"precision": ["fp32", "bf16"]}
    return load(tmp_path, seeds=SEEDS, length={"steps": 60}, warmup=5, matrix=matrix)


Show = Callable[..., str]


@pytest.fixture
def shown(sweep: Sweep, results: Results, capsys: pytest.CaptureFixture[str]) -> Show:
    """Return a function that returns what is printed of these records of the sweep."""

    def print_records(records: list[Record], **options: Any) -> str:
        recorded = RecordedSweep(sweep=sweep, records=records, unreadable=[], other_count=0)
        show(sweep_view(recorded, results, **options))
        return capsys.readouterr().out

    return print_records


def test_unsettled_trials_are_counted_once_at_the_end(sweep: Sweep, shown: Show) -> None:
    drifting = [replace(record, settled=False) for record in records(sweep.cells[1])]
    lines = shown([*records(sweep.cells[0]), *drifting]).splitlines()
    (line,) = [line for line in lines if "never settled" in line]
    assert line == ("5 trials never settled (bf16), so warm-up may count; raise length or warmup")


def test_a_clock_that_moved_is_named_with_what_holds_it(sweep: Sweep, shown: Show) -> None:
    trials = []
    for number, record in enumerate(records(sweep.cells[0])):
        clocks = {
            "gpu_sm_clock_lowest_mhz": 1110.0 if number == 1 else 1965.0,
            "gpu_sm_clock_highest_mhz": 1980.0,
        }
        trials.append(replace(record, numbers={**record.numbers, **clocks}))
    out = " ".join(shown(trials).split())
    assert "the clock of a GPU moved during 1 trial, as from 1,110 to 1,980 MHz; nvidia-smi" in out
    assert "the clock of a GPU" not in shown([trials[0]])


def test_several_seeds_end_with_verdicts(sweep: Sweep, shown: Show) -> None:
    out = shown([*records(sweep.cells[0]), *records(sweep.cells[1], slower=0.25)])
    (row,) = [line for line in out.splitlines() if line.startswith("bf16 ")]
    match = re.search(r" 0\.8\d*× \((\S+) to (\S+)\) +slower ", row)
    assert match is not None
    assert float(match[1]) <= 0.8 <= float(match[2])
    assert out.startswith("mlp: fastest is fp32 with ")
    assert "certain at 95%." in out.splitlines()[0]


def test_failed_and_invalid_trials_are_counted_and_what_disturbed_them_has_a_remedy(
    sweep: Sweep, shown: Show
) -> None:
    waited = "contention: rank 0 on host: waited for a core of others: found 50.0%"
    disturbed = make_record(sweep.cells[0], seed=1, status="invalid", invalid=[waited])
    out = shown([make_record(sweep.cells[0], status="failed"), disturbed])
    assert "1 failed, 1 invalid, in no mean; harness status says why; run or submit" in out
    assert f"other programs used the cores: {QUIET_MACHINE}" in out


def test_commands_to_try_next_look_where_the_results_are(
    sweep: Sweep, results: Results, shown: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = records(sweep.cells[0])
    out = shown(trials, trouble="down")
    for command in ("ui", "collect demo"):
        assert f"harness --results {results.path} {command}" in out
    monkeypatch.setenv("HARNESS_RESULTS", str(results.path))
    uri = "http://host"
    out = shown(trials, trouble="down", tracking_uri=uri)
    assert "--results" not in out
    for command in ("harness ui", "harness collect demo"):
        assert f"{command} --tracking-uri " in out
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert "--tracking-uri" not in shown(trials, trouble="down", tracking_uri=uri)


def test_a_busy_machine_is_answered_at_the_first_trial_that_it_makes_invalid(
    sweep: Sweep, results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    view = RunView(sweep, TerminalConsole())
    trials = sweep.trials()[:2]
    view.on_plan(trials, [])
    contended = ["contention: rank 0 on vm: waited for a core of others: found 40%"]
    for trial, invalid in ((trials[0], contended), (trials[1], []), (trials[0], contended)):
        view.on_trial_start(trial)
        status: Status = "invalid" if invalid else "done"
        record = make_record(trial.cell, seed=trial.seed, status=status, invalid=invalid)
        view.on_trial_end(record, results.sweep_folder(sweep.name).trial_folder(trial.id))
    out = capsys.readouterr().out
    assert [number in out for number in ("! 1/2 ", "✓ 2/2 ", "3/3")] == [True, True, False]
    assert out.count(QUIET_MACHINE) == 1
    assert "--tolerate-load" in QUIET_MACHINE


def test_an_error_of_ones_own_code_begins_with_its_line(tmp_path: Path) -> None:
    own = tmp_path / "lm.py"
    traceback = (
        'Traceback (most recent call last):\n  File "/x/lib/python3.11/runpy.py", line 1, in <module>\n'
        f'    run()\n  File "{own}", line 12, in loss\n    return cross_entropy(x, y)\n'
        '  File "/x/site-packages/torch/nn/functional.py", line 3, in cross_entropy\n'
        "ValueError: shapes\n"
    )
    failure = Failure(kind="ValueError", message="shapes", rank=1, traceback=traceback)
    assert str(failure) == f"{os.path.relpath(own)}:12: rank 1: ValueError: shapes"
    assert replace(failure, traceback=None).own_line is None


def with_load(record: Record, load: float) -> Record:
    """Return the record of a trial next to so many processes a core."""
    return replace(record, numbers={**record.numbers, "load_per_core": load})


def test_a_load_that_changed_is_the_first_thing_said(sweep: Sweep, shown: Show) -> None:
    trials = []
    for record in [*records(sweep.cells[0]), *records(sweep.cells[1], slower=0.25)]:
        trials.append(with_load(record, 2.8 if record.trial.seed == 0 else 12.0))
    first, _, second = shown(trials).partition("mlp: fastest is ")
    assert "sweep: 2.8 per core at seed 0, 12.0 at seed 4. The machine, not" in " ".join(
        first.split()
    )
    assert second
    assert shown([with_load(record, 2.8) for record in trials]).startswith("mlp: fastest is ")


def test_at_most_ten_lines_are_beside_the_table(sweep: Sweep, shown: Show) -> None:
    """However much there is to say; `wide` says all of it."""
    trials = [*records(sweep.cells[0])[:2], make_record(sweep.cells[0], seed=3, status="failed")]
    for record in records(sweep.cells[1])[:2]:
        later = replace(record, started=record.started + 1e6, ended=record.ended + 1e6)
        trials.append(replace(later, settled=False))
    lines = shown(trials, trouble="down").splitlines()
    (heading,) = [number for number, line in enumerate(lines) if line.startswith("cell ")]
    assert len(lines) - (len(sweep.cells) + 1) <= 10
    assert [line for line in lines if line.startswith("next  ")] == lines[-1:]
    assert "--wide" in lines[-1]
    assert heading < 3
    wide = shown(trials, trouble="down", wide=True)
    assert "never settled" in wide
    assert sweep.cells[0].id in wide


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_table_is_no_wider_than_the_terminal(sweep: Sweep, width: int) -> None:
    trials = [*records(sweep.cells[0]), *records(sweep.cells[1], slower=0.25)]
    result = SweepResult.of_records(sweep, trials)
    console = TerminalConsole(width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.draw(cells_table(result, "mlp"))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    assert ("step ms" in lines[0]) is (width > 60)
    assert "verdict" in lines[0]


def test_trials_of_other_settings_are_counted(
    sweep: Sweep, results: Results, tmp_path: Path
) -> None:
    """As those that an earlier command without --set has left."""
    folder = results.sweep_folder(sweep.name)
    for record in [*records(sweep.cells[0]), *records(sweep.cells[1])]:
        write_trial(folder, record)
    part = load(tmp_path, seeds=SEEDS, length={"steps": 60}, warmup=5)
    write_spec(part, folder)
    ended = harness("show", sweep.name, "--results", str(results.path))
    assert "5 recorded trials of other code or settings left out: the last command" in ended.err
