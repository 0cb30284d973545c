"""What `harness run` shows of its trials: a line each, and at the end verdicts and remarks."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.paths import Results
from harness.measure.steady import MIN_STEPS_TO_SETTLE
from harness.records.across import in_memory_ranks
from harness.records.record import Failure, Interruption, RankResults, Record, TelemetryAcross
from harness.render.console import TerminalConsole
from harness.render.format import interruption_note
from harness.render.plan import QUIET_MACHINE
from harness.render.results import show_results
from harness.render.run import RunView, trial_line
from harness.spec.sweep import Sweep
from tests.factories import make_record
from tests.support.benchmarks import SEEDS, records
from tests.support.sweeps import load

UNSETTLED = "never reached a steady state"
TOO_SHORT = "too short to show a steady state"


def unsettled(record: Record, *, steps: int) -> Record:
    """Return the record with a window of that many steps, whose times never settled."""
    assert record.summary is not None
    return replace(record, summary=replace(record.summary, settled=False, window_steps=steps))


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """Return a sweep of fp32 and bf16, of as many seeds as `records` makes."""
    return load(
        tmp_path,
        seeds=SEEDS,
        length={"steps": 60},
        warmup=5,
        matrix={"precision": ["fp32", "bf16"]},
    )


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


def test_unsettled_trials_are_counted_once_at_the_end(
    sweep: Sweep, results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    steady = records(sweep.cells[0])
    drifting = [unsettled(record, steps=MIN_STEPS_TO_SETTLE) for record in records(sweep.cells[1])]
    show_results(sweep, [*steady, *drifting], results)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if UNSETTLED in line]
    assert line.startswith("5 of 10 trials never reached a steady state: ")
    assert "warmup" in line


def test_a_clock_that_moved_is_named_with_what_holds_it(
    sweep: Sweep, results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = []
    for number, record in enumerate(records(sweep.cells[0])):
        telemetry = TelemetryAcross(
            readings={},
            shares={},
            throttled={},
            foreign_processes=None,
            joules_per_step=None,
            sm_clock_range=(1.11e9, 1.98e9) if number == 1 else (1.965e9, 1.98e9),
        )
        across = replace(record.ranks.across, telemetry=telemetry)
        trials.append(replace(record, ranks=RankResults(lambda: [], across)))
    show_results(sweep, trials, results)
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "1 of 5 trials: the clock of a GPU moved while it trained, between 1,110 and 1,980 MHz;"
        " nvidia-smi --lock-gpu-clocks holds it" in out
    )
    show_results(sweep, [trials[0]], results)
    assert "the clock of a GPU" not in capsys.readouterr().out


def test_a_trials_line_says_nothing_of_steady_states(sweep: Sweep, results: Results) -> None:
    record = unsettled(records(sweep.cells[0])[0], steps=100)
    folder = results.sweep_folder(sweep.name).trial_folder(record.trial.id)
    assert "stead" not in trial_line(record, folder, 1, 1)


def test_trials_too_short_for_a_steady_state_are_mentioned_only_when_verbose(
    sweep: Sweep, results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    short = [unsettled(record, steps=MIN_STEPS_TO_SETTLE - 1) for record in records(sweep.cells[0])]
    show_results(sweep, short, results)
    quiet = capsys.readouterr().out
    assert UNSETTLED not in quiet
    assert TOO_SHORT not in quiet
    show_results(sweep, short, results, verbose=True)
    assert f"5 of 5 trials are {TOO_SHORT}" in capsys.readouterr().out


def test_several_seeds_end_with_verdicts(
    sweep: Sweep, results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    slower = [*records(sweep.cells[0]), *records(sweep.cells[1], slower=0.25)]
    show_results(sweep, slower, results)
    shown = capsys.readouterr().out
    (row,) = [line for line in shown.splitlines() if "×" in line]
    workload, cell, reference, ratio, low, _, high, pairs, *verdicts = row.split()
    assert (workload, cell, reference) == ("mlp", "bf16", "fp32")
    assert ratio == "0.800×"
    assert float(low) <= 0.8 <= float(high)
    assert pairs == "5"
    assert verdicts == ["slower", "same"]


def test_cells_of_a_single_trial_have_no_verdict(
    tmp_path: Path, results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    workloads = {
        "mlp": {"data": {"source": "digits"}},
        "cnn": {"data": {"source": "digits"}, "seeds": [0]},
    }
    precisions = {"precision": ["fp32", "bf16"]}
    sweep = load(tmp_path, workloads, seeds=SEEDS, length={"steps": 60}, matrix=precisions)
    shown = [
        record
        for cell in sweep.cells
        for record in records(cell)
        if record.trial.seed in sweep.seeds_of(cell)
    ]
    show_results(sweep, shown, results)
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "×" in line]
    assert rows == ["mlp"]


def test_a_single_trial_a_cell_ends_without_verdicts(
    tmp_path: Path, results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = load(tmp_path, matrix={"precision": ["fp32", "bf16"]})
    show_results(sweep, [make_record(cell) for cell in sweep.cells], results)
    assert "verdict" not in capsys.readouterr().out


def test_failed_interrupted_and_invalid_trials_are_counted(
    sweep: Sweep, results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = sweep.cells[0]
    shown = [
        make_record(cell, seed=0, status="failed"),
        make_record(cell, seed=1, status="invalid", invalid=["data wait"]),
    ]
    show_results(sweep, shown, results)
    lines = capsys.readouterr().out.splitlines()
    assert "1 failed; run or submit the sweep again to retry them" in lines
    assert any(line.startswith("1 invalid, left out of all means") for line in lines)
    assert not any(" interrupted" in line for line in lines)


def test_commands_to_try_next_look_where_the_results_are(
    sweep: Sweep,
    results: Results,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = records(sweep.cells[0])
    show_results(sweep, shown, results, trouble="down")
    lines = [line for line in capsys.readouterr().out.splitlines() if "harness " in line]
    commands = ("harness ui", "harness show demo --phases", "harness collect demo")
    for command in commands:
        assert any(f"{command} --results {results.path}" in line for line in lines)
    monkeypatch.setenv("HARNESS_RESULTS", str(results.path))
    show_results(sweep, shown, results, trouble="down")
    assert "--results" not in capsys.readouterr().out


def test_suggested_commands_name_the_server_unless_they_find_it(
    sweep: Sweep,
    results: Results,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARNESS_RESULTS", str(results.path))
    shown, uri = records(sweep.cells[0]), "http://me:hunter2@host"
    show_results(sweep, shown, results, trouble="down", tracking_uri=uri)
    printed = capsys.readouterr().out
    for command in ("harness ui", "harness collect demo"):
        assert f"{command} --tracking-uri " in printed
    assert "hunter2" not in printed
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    show_results(sweep, shown, results, trouble="down", tracking_uri=uri)
    assert "--tracking-uri" not in capsys.readouterr().out


def test_more_trials_are_suggested_by_a_command_that_can_be_pasted(
    sweep: Sweep, results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "harness run demo.yaml --only precision=fp32"
    show_results(sweep, records(sweep.cells[0]), results, run_command=command)
    assert f"{command} --seeds 7 " in capsys.readouterr().out
    replaced = f"{command} --set seeds=1 --set 'seeds=[0, 1]' --set lr=0.1"
    show_results(sweep, records(sweep.cells[0]), results, run_command=replaced)
    assert f"{command} --set lr=0.1 --seeds 7 " in capsys.readouterr().out
    show_results(sweep, records(sweep.cells[0]), results)
    assert "harness run" not in capsys.readouterr().out


def test_a_total_failure_suggests_a_log_and_no_more_trials(
    sweep: Sweep, results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = [make_record(sweep.cells[0], seed=seed, status="failed") for seed in (0, 1)]
    show_results(sweep, failed, results, run_command="harness run demo.yaml")
    shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if line.startswith("next")]
    assert f"harness status logs {failed[0].trial.id} --results {results.path}" in line
    assert "more trials" not in shown
    assert "--phases" not in shown


def test_trials_that_others_disturbed_name_the_remedy(
    sweep: Sweep, results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    waited = "contention: rank 0 on host: waited for a core of others: found 50.0%"
    shown = [make_record(sweep.cells[0], status="invalid", invalid=[waited])]
    show_results(sweep, shown, results)
    assert f"other programs used the cores: {QUIET_MACHINE}" in capsys.readouterr().out


def test_results_begin_with_sentences(
    sweep: Sweep, results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    slower = [*records(sweep.cells[0]), *records(sweep.cells[1], slower=0.25)]
    show_results(sweep, slower, results)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Fastest: fp32 with ")
    assert lines[1:4] == ["Equal in speed: none is shown to be.", "Undecided: none.", ""]


def test_interruptions_are_told_as_mlflow_tells_them(sweep: Sweep, results: Results) -> None:
    record = records(sweep.cells[0])[0]
    interruption = Interruption(step=8, at=0.0, signal=None, lost_seconds=1.5)
    record = replace(
        record, ranks=in_memory_ranks([replace(record.ranks[0], interruptions=[interruption])])
    )
    folder = results.sweep_folder(sweep.name).trial_folder(record.trial.id)
    note = "ended without a signal after step 8: 1.5 s lost"
    assert note in trial_line(record, folder, 1, 1)
    assert interruption_note(interruption) == note


def test_a_busy_machine_is_answered_at_the_first_trial_that_it_makes_invalid(
    sweep: Sweep, results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    view = RunView(sweep, results, TerminalConsole())
    trials = sweep.trials()[:2]
    view.on_plan(trials, [])
    contended = ["contention: rank 0 on vm: waited for a core of others: found 40%"]
    for trial, invalid in ((trials[0], contended), (trials[1], []), (trials[0], contended)):
        view.on_trial_start(trial)
        record = make_record(
            trial.cell,
            seed=trial.seed,
            status="invalid" if invalid else "done",
            invalid=invalid,
        )
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
